"""Carries out what a Kubernetes cluster would: jobs whose pods are processes of this machine.

Controllers look at the server's objects, start and end pods, and write status, as those of JobSet,
TrainJob, Job and CronJob do where we depend on them: indexed completions, pod failure policies,
suspension, deletion that waits for pods.
"""

import copy
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes import schemas
from tests.kubernetes.api_server import ApiServer, Key, Object, merged
from wattmesh.integrations.kubernetes import __main__ as commands

REPOSITORY = Path(__file__).parents[2]
NAMESPACE = "team"
TURN_S = 0.03
RUNTIME = {
    "name": "node",
    "replicas": 1,
    "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": 20, "template": {"spec": {"containers": [{"name": "node"}]}}},
    },
}
"""What a TrainJob's runtime has: no command, no pod failure policy."""


@dataclass(slots=True)
class Job:
    """One batch job, with one pod for each host.

    Attributes:
        live: the pods by index. `done`: indexes that have completed. `restarts`: pods lost.
        asked: ids of pods that were asked to end.
    """

    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    live: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    restarts: int = 0

    def ask_to_end(self) -> None:
        """Ask each pod once, as the kubelet does."""
        for process in self.live.values():
            if process.pid not in self.asked:
                process.send_signal(signal.SIGTERM)
                self.asked.add(process.pid)


class Cluster:
    """A namespace of a cluster; `account` is the folder of its service account."""

    def __init__(self, folder: Path, certificate: Path, key: Path) -> None:
        """Serve, and carry out; pods log in `folder`."""
        self.folder = folder
        role = (commands.BASE / "training" / "role.yaml").read_text()
        rules = next(each["rules"] for each in yaml.safe_load_all(role) if each["kind"] == "Role")
        self.server = ApiServer(certificate, key, rules, schemas.admit)
        self.server.on_delete = self._has_pods
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "token").write_text("token-1\n")
        (self.account / "ca.crt").write_bytes(certificate.read_bytes())
        self._jobs: dict[str, Job] = {}
        self._alarms: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        # One lock for objects and pods: who deletes an object asks for its pods, and who ends a pod
        # changes its object.
        self._lock = self.server.store.changed
        self._threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._control, daemon=True),
        ]
        self.problem: BaseException | None = None

    def objects(self, resource: str) -> dict[str, Object]:
        """Return the objects of a kind, by name."""
        with self.server.store.changed:
            return {
                key[2]: copy.deepcopy(each)
                for key, each in self.server.store.objects.items()
                if key[0] == resource
            }

    def apply(self, made: Object) -> None:
        """Create an object, as `kubectl apply` does for a person."""
        resource = f"{made['kind'].lower()}s"
        made = copy.deepcopy(made)
        made["metadata"] |= {"uid": str(uuid.uuid4())}
        assert schemas.admit(resource, made, None) == ""
        self.server.store.put((resource, NAMESPACE, made["metadata"]["name"]), made, "ADDED")

    def delete(self, resource: str, name: str) -> None:
        """Delete an object, as a person does."""
        key = (resource, NAMESPACE, name)
        found = copy.deepcopy(self.server.store.objects[key])
        found["metadata"]["deletionTimestamp"] = "now"
        self.server.store.put(key, found, "MODIFIED" if self._has_pods(key) else "DELETED")

    def ring(self, name: str) -> None:
        """Let a CronJob's time come."""
        spec = self.objects("cronjobs")[name]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        self._alarms.append(self._pod(spec["containers"][0], {"name": name}, 0, ""))

    def command(self, *words: str, **environment: str) -> str:
        """Run one of the commands in a pod of its own; return what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.kubernetes.dying", *words],
            env={**os.environ, **self._of_pod("person"), **environment},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def pods(self, name: str) -> dict[int, int]:
        """Return the process ids of a job's pods, by index."""
        with self._lock:
            job = self._jobs.get(name, Job())
            return {index: each.pid for index, each in job.live.items()}

    def state(self, name: str) -> str:
        """Say what has become of a JobSet: its condition, or "live", "suspended", "gone"."""
        found = self.objects("jobsets").get(name)
        if found is None:
            return "gone"
        ended = [each["type"] for each in found.get("status", {}).get("conditions", ())]
        return ended[0] if ended else ("suspended" if found["spec"].get("suspend") else "live")

    def states(self) -> dict[str, str]:
        """Return what has become of all JobSets."""
        return {name: self.state(name) for name in self.objects("jobsets")}

    def said(self) -> str:
        """Return what all pods printed."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {each.name}\n{each.read_text()[-4000:]}" for each in logs)

    def _control(self) -> None:
        while not self._stop.wait(TURN_S):
            try:
                for name, job in self.objects("trainjobs").items():
                    self._control_trainjob(name, job)
                for name, job in self.objects("jobsets").items():
                    with self._lock:
                        self._control_jobset(name, job)
            except BaseException as error:
                self.problem = error
                return

    def _control_trainjob(self, name: str, job: Object) -> None:
        """Make the JobSet of a TrainJob, suspend it alike, and copy its end."""
        key = ("jobsets", NAMESPACE, name)
        found = self.server.store.objects.get(key)
        spec = job["spec"]
        if found is None:
            ranks = copy.deepcopy(RUNTIME)
            work: Object = ranks["template"]["spec"]  # type: ignore[index]
            trainer = spec["trainer"]
            work |= {"parallelism": trainer["numNodes"], "completions": trainer["numNodes"]}
            container = {**work["template"]["spec"]["containers"][0]}
            container |= {each: trainer[each] for each in ("image", "command", "env")}
            work["template"]["spec"]["containers"] = [container]
            made = {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": name, "namespace": NAMESPACE, "uid": str(uuid.uuid4())},
                "spec": {"suspend": spec.get("suspend", False), "replicatedJobs": [ranks]},
            }
            self.server.store.put(key, made, "ADDED")
        elif found["spec"]["suspend"] != spec.get("suspend", False):
            self._change(key, {"spec": {"suspend": spec.get("suspend", False)}})
        elif (state := self.state(name)) in ("Completed", "Failed") and not job.get("status"):
            word = {"Completed": "Complete"}.get(state, state)
            self._end(("trainjobs", NAMESPACE, name), word)

    def _control_jobset(self, name: str, jobset: Object) -> None:
        key = ("jobsets", NAMESPACE, name)
        job = self._jobs.setdefault(name, Job())
        spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        for index, process in list(job.live.items()):
            if (status := process.poll()) is not None:
                del job.live[index]
                self._ended(key, job, index, status, spec)
        jobset = self.server.store.objects.get(key, {"metadata": {"deletionTimestamp": "now"}})
        ends = "deletionTimestamp" in jobset["metadata"]
        if ends and not job.live:
            if key in self.server.store.objects:
                self.server.store.put(key, jobset, "DELETED")
            del self._jobs[name]
        elif ends or jobset["spec"].get("suspend"):
            job.ask_to_end()
        elif not jobset.get("status", {}).get("conditions"):
            for index in range(spec["completions"]):
                if index not in job.live and index not in job.done:
                    container = spec["template"]["spec"]["containers"][0]
                    job.live[index] = self._pod(container, {"name": name}, index, job.uid)

    def _ended(self, key: Key, job: Job, index: int, status: int, spec: Object) -> None:
        """Heed the end of a pod, as the Job controller does."""
        policy = spec.get("podFailurePolicy", {}).get("rules", ())
        final = [each["onExitCodes"]["values"] for each in policy if "onExitCodes" in each]
        if status == 0:
            job.done.add(index)
            if len(job.done) == spec["completions"]:
                self._end(key, "Completed")
            return
        job.restarts += 1
        if (final and status in final[0]) or job.restarts > spec["backoffLimit"]:
            for process in job.live.values():
                process.kill()
            self._end(key, "Failed")

    def _end(self, key: Key, condition: str) -> None:
        self._change(key, {"status": {"conditions": [{"type": condition, "status": "True"}]}})

    def _change(self, key: Key, change: Object) -> None:
        with self.server.store.changed:
            found = self.server.store.objects.get(key)
            if found is not None:
                self.server.store.put(key, merged(found, change), "MODIFIED")

    def _has_pods(self, key: Key) -> bool:
        with self._lock:
            return key[0] == "jobsets" and bool(self._jobs.get(key[2], Job()).live)

    def _pod(
        self, container: Object, about: Object, index: int, job_uid: str
    ) -> subprocess.Popen[bytes]:
        """Start a container: environment from the downward API, `$(...)` filled in."""
        name, fields = (
            about["name"],
            {
                "metadata.labels['jobset.sigs.k8s.io/jobset-name']": about["name"],
                "metadata.labels['batch.kubernetes.io/controller-uid']": job_uid,
                "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
                "metadata.namespace": NAMESPACE,
                "status.podIP": "127.0.0.1",
                "metadata.uid": str(uuid.uuid4()),
            },
        )
        own: dict[str, Any] = {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container.get("env", ())
        }
        words = [
            re.sub(r"\$\((\w+)\)", lambda found: own[found[1]], each)
            for each in (*container["command"], *container.get("args", ()))
        ]
        assert words[:3] == [sys.executable, "-m", "wattmesh.integrations.kubernetes"], words
        words[2] = "tests.kubernetes.dying"
        environment = {**os.environ, **own, **self._of_pod(name)}
        with (self.folder / f"{name}-{index}.log").open("ab") as log:
            return subprocess.Popen(words, env=environment, cwd=REPOSITORY, stdout=log, stderr=log)

    def _of_pod(self, job: str) -> dict[str, str]:
        return {"API_URL": self.server.url, "API_ACCOUNT": str(self.account), "JOB": job}

    def close(self) -> None:
        """End everything."""
        self._stop.set()
        self._threads[1].join(10.0)
        for job in self._jobs.values():
            for each in job.live.values():
                each.kill()
                each.wait()
        for each in self._alarms:
            each.kill()
            each.wait()

    def begin(self) -> None:
        """Start to serve."""
        for each in self._threads:
            each.start()


@contextmanager
def running(folder: Path, certificate: Path, key: Path) -> Iterator[Cluster]:
    """A cluster for the length of the block."""
    cluster = Cluster(folder, certificate, key)
    cluster.begin()
    try:
        yield cluster
    finally:
        cluster.close()
        cluster.server.stop()
    assert cluster.problem is None, cluster.problem


def rendered(
    name: str, folder: Path, *command: str, kind: str = "JobSet", hosts: int = 1
) -> Object:
    """The job that `render` prints, for pods that are processes here."""
    words = ["render", f"--kind={kind}", f"--name={name}", f"--namespace={NAMESPACE}"]
    words += ["--image=here", f"--hosts={hosts}", "--nproc=1", "--claim=runs"]
    words += [f"--mount={folder.parent}", f"--checkpoint-dir={folder}", "--", *command]
    told = io.StringIO()
    with redirect_stdout(told):
        assert commands.main(words) == 0
    made: Object = json.loads(told.getvalue().replace('"python"', json.dumps(sys.executable)))
    return made
