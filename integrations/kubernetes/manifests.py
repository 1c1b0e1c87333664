"""Renders the job that a user starts with: a JobSet, or a TrainJob. Pure.

What it renders is JSON, which is YAML too. A user may write more into it: successors keep it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.integrations.kubernetes import names
from wattmesh.integrations.kubernetes.job_kinds import JOBSET, LONGEST_BASE, TRAINJOB, JobKind

Object = dict[str, Any]

GRACE_S = 660
"""How long a pod may take to stop: the ten minutes of `--stop-grace`, and one more."""

RESTARTS = 20
"""How many pods may be lost before Kubernetes gives the job up."""

MOST_HOSTS, MOST_RANKS = 4096, 64
"""Pods of a job, and ranks or GPUs of each."""

STAYS_ENDED = (1, 3, 75)
"""Exit statuses after which no other pod is to begin: given up, refused, stopped on request."""

FROM_POD = {
    "JOB_NAME": "metadata.labels['jobset.sigs.k8s.io/jobset-name']",
    "JOB_UID": "metadata.labels['batch.kubernetes.io/controller-uid']",
    "JOB_HOST": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "JOB_NAMESPACE": "metadata.namespace",
    "POD_IP": "status.podIP",
    "POD_UID": "metadata.uid",
}
"""What a pod learns of itself: environment variable, and the field of the downward API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a user asks for.

    Attributes:
        hosts: how many pods have ranks. `nproc`: how many ranks each of them starts.
        gpus: how many GPUs each pod asks for; 0: none.
        folder: the run's checkpoint folder, below `mount`, where the claim is mounted.
        claim: the persistent volume claim, which all pods can write at once.
        url: address of the daemon or of the node's agent, as in WATTMESH_URL; "": none.
        socket_dir: folder of the node with the agent's socket, which pods get; "": none.
        command: words after `--`, as `run` takes them.
        runtime: of a TrainJob. `container`: in which of its containers ranks are.
    """

    name: str
    namespace: str
    image: str
    hosts: int
    nproc: int
    gpus: int
    folder: str
    claim: str
    mount: str
    command: Sequence[str]
    account: str = "wattmesh-training"
    python: str = "python"
    url: str = ""
    socket_dir: str = ""
    runtime: str = "torch-distributed"
    container: str = "node"


def check(wanted: JobRequest) -> None:
    """Check what Kubernetes would refuse only later, or somewhere else.

    Raises:
        InputInvalid: with what to change.
    """
    if len(wanted.name) > LONGEST_BASE:
        raise InputInvalid(
            f"--name {wanted.name} has {len(wanted.name)} letters: at most {LONGEST_BASE}, because "
            "names of pods are made of it."
        )
    for option, text, begins in (
        ("--name", wanted.name, "a-z"),
        ("--namespace", wanted.namespace, "a-z0-9"),
    ):
        if not re.fullmatch(rf"[{begins}]([-a-z0-9]{{0,61}}[a-z0-9])?", text):
            raise InputInvalid(
                f"{option} {text!r} is no name of Kubernetes: use a-z, 0-9 and `-`; it begins with "
                f"one of {begins} and does not end with `-`."
            )
    if ".." in wanted.folder.split("/") or not wanted.folder.startswith(
        wanted.mount.rstrip("/") + "/"
    ):
        raise InputInvalid(
            f"--checkpoint-dir {wanted.folder} is not below {wanted.mount}, where the claim "
            f"{wanted.claim} is mounted: nothing else outlives a pod."
        )
    if not 1 <= wanted.hosts <= MOST_HOSTS or not 1 <= wanted.nproc <= MOST_RANKS:
        raise InputInvalid(
            f"--hosts is at least 1 and at most {MOST_HOSTS}, --nproc at most {MOST_RANKS}."
        )
    if not 0 <= wanted.gpus <= MOST_RANKS:
        raise InputInvalid(f"--gpus is at least 0 and at most {MOST_RANKS}.")
    _check_texts(wanted)


def _check_texts(wanted: JobRequest) -> None:
    names.check_image("--image", wanted.image)
    names.check_object("--claim", wanted.claim)
    names.check_object("--account", wanted.account)
    names.check_object("--runtime", wanted.runtime)
    names.check_path("--mount", wanted.mount, mounted=True)
    names.check_path("--checkpoint-dir", wanted.folder)
    if wanted.socket_dir:
        names.check_path("--socket-dir", wanted.socket_dir, mounted=True)
    if wanted.url:
        names.check_url("--url", wanted.url)
    if odd := next((each for each in wanted.command if "\0" in each), ""):
        raise InputInvalid(f"a word of the command has a zero byte in it: {odd[:80]!r}.")


def job(kind: JobKind, wanted: JobRequest) -> Object:
    """Return the manifest.

    Raises:
        InputInvalid: see `check`.
    """
    check(wanted)
    spec = _jobset_spec(wanted) if kind is JOBSET else _trainjob_spec(wanted)
    return {
        "apiVersion": f"{kind.group}/{kind.version}",
        "kind": kind.name,
        "metadata": {"name": wanted.name, "namespace": wanted.namespace},
        "spec": spec,
    }


def words(kind: JobKind, wanted: JobRequest) -> list[str]:
    """Return the command of each pod; Kubernetes fills in `$(...)`."""
    return [
        *(wanted.python, "-m", "wattmesh.integrations.kubernetes", "run"),
        *(f"--kind={kind.name}", "--namespace=$(JOB_NAMESPACE)", "--job=$(JOB_NAME)"),
        *("--job-uid=$(JOB_UID)", "--host=$(JOB_HOST)", "--address=$(POD_IP)"),
        *(f"--nproc={wanted.nproc}", f"--checkpoint-dir={wanted.folder}"),
        *("--", *wanted.command),
    ]


def _jobset_spec(wanted: JobRequest) -> Object:
    ends = {"containerName": wanted.container, "operator": "In", "values": list(STAYS_ENDED)}
    pod = {
        "serviceAccountName": wanted.account,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "volumes": _volumes(wanted),
        "containers": [
            {
                "name": wanted.container,
                "image": wanted.image,
                "command": words(JOBSET, wanted),
                "env": _environment(wanted),
                "resources": _resources(wanted),
                "volumeMounts": _mounts(wanted),
                "securityContext": {"allowPrivilegeEscalation": False},
            }
        ],
    }
    work = {
        "completionMode": "Indexed",
        "parallelism": wanted.hosts,
        "completions": wanted.hosts,
        "backoffLimit": RESTARTS,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {"action": "FailJob", "onExitCodes": ends},
            ]
        },
        "template": {"spec": pod},
    }
    ranks = {"name": "ranks", "replicas": 1, "template": {"spec": work}}
    return {"suspend": False, "ttlSecondsAfterFinished": 86400, "replicatedJobs": [ranks]}


def _trainjob_spec(wanted: JobRequest) -> Object:
    # What a TrainJob itself has no field for is a patch of its runtime.
    pod = {
        "serviceAccountName": wanted.account,
        "volumes": _volumes(wanted),
        "containers": [{"name": wanted.container, "volumeMounts": _mounts(wanted)}],
    }
    ranks = {"name": wanted.container, "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"template": {"spec": {"replicatedJobs": [ranks]}}}
    return {
        "suspend": False,
        "runtimeRef": {"name": wanted.runtime},
        "trainer": {
            "image": wanted.image,
            "command": words(TRAINJOB, wanted),
            "env": _environment(wanted),
            "numNodes": wanted.hosts,
            "numProcPerNode": wanted.nproc,
            "resourcesPerNode": _resources(wanted),
        },
        "runtimePatches": [{"manager": "wattmesh/render", "trainingRuntimeSpec": patch}],
    }


def _environment(wanted: JobRequest) -> list[Object]:
    own: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}
        for name, field in FROM_POD.items()
    ]
    return [*own, {"name": "WATTMESH_URL", "value": wanted.url}] if wanted.url else own


def _resources(wanted: JobRequest) -> Object:
    return {"limits": {"nvidia.com/gpu": str(wanted.gpus)}} if wanted.gpus else {}


def _volumes(wanted: JobRequest) -> list[Object]:
    runs: Object = {"name": "runs", "persistentVolumeClaim": {"claimName": wanted.claim}}
    shm: Object = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    agent: Object = {
        "name": "wattmesh",
        "hostPath": {"path": wanted.socket_dir, "type": "Directory"},
    }
    return [runs, shm, agent] if wanted.socket_dir else [runs, shm]


def _mounts(wanted: JobRequest) -> list[Object]:
    found: list[Object] = [
        {"name": "runs", "mountPath": wanted.mount},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if wanted.socket_dir:
        found.append({"name": "wattmesh", "mountPath": wanted.socket_dir, "readOnly": True})
    return found
