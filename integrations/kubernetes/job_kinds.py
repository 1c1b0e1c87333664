"""JobSets and TrainJobs as objects: what is read of them, and how a successor is made. Pure.

A successor is the job's own object with another name, another size, and suspended; whatever else
its user wrote stays.
"""

import copy
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattmesh.errors import InputInvalid

Object = dict[str, Any]

RUN_LABEL = "wattmesh/run"
KEY_ANNOTATION = "wattmesh/key"

TRAINER_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
"""Label of the replicated job in which a TrainJob's ranks are."""

LONGEST_BASE = 32
_SUFFIX = re.compile(r"-w[0-9a-f]{8}$")
_ENDED = {"Completed", "Complete", "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One of the two kinds of job. `plural`: its name in paths."""

    name: str
    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of one job, or of all."""
        return f"/apis/{self.group}/{self.version}/namespaces/{namespace}/{self.plural}" + (
            f"/{name}" if name else ""
        )


JOBSET = JobKind(name="JobSet", group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets")
TRAINJOB = JobKind(
    name="TrainJob", group="trainer.kubeflow.org", version="v1alpha1", plural="trainjobs"
)
KINDS = {each.name: each for each in (JOBSET, TRAINJOB)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """What is known of a job.

    Attributes:
        hosts: how many pods have ranks; 0 where the runtime says, not the job.
        key, run: of the launch that it was made for; "" by hand.
        ended: whether it has completed or failed. A job that is being deleted has not.
    """

    name: str
    uid: str
    hosts: int
    suspended: bool
    ended: bool
    key: str = ""
    run: str = ""
    created_at: datetime | None = None


def facts(kind: JobKind, job: Object) -> KnownJob:
    """Read a job; what is missing or malformed counts as not there."""
    about, conditions = _part(job, "metadata"), _part(job, "status").get("conditions")
    met = {
        str(each.get("type"))
        for each in (conditions if isinstance(conditions, list) else ())
        if isinstance(each, dict) and each.get("status") == "True"
    }
    return KnownJob(
        name=str(about.get("name", "")),
        uid=str(about.get("uid", "")),
        hosts=_hosts(kind, job),
        suspended=_part(job, "spec").get("suspend") is True,
        ended=bool(met & _ENDED),
        key=str(_part(about, "annotations").get(KEY_ANNOTATION, "")),
        run=str(_part(about, "labels").get(RUN_LABEL, "")),
        created_at=_moment(about.get("creationTimestamp")),
    )


def version_of(found: Object) -> str:
    """Return the resource version of an object or a bookmark; "" if it has none."""
    return str(_part(found, "metadata").get("resourceVersion") or "")


def successor_name(name: str, run: str, key: str) -> str:
    """Name the job of a launch: always the same, so that it cannot be made twice."""
    base = _SUFFIX.sub("", name)[:LONGEST_BASE].rstrip("-.")
    return f"{base}-w{hashlib.sha256(f'{run}.{key}'.encode()).hexdigest()[:8]}"


def successor(kind: JobKind, job: Object, hosts: int, run: str, key: str) -> Object:
    """Return the job that follows `job` on a number of hosts, suspended.

    Raises:
        InputInvalid: the job has no place in which a number of hosts could be written.
    """
    about, spec = _part(job, "metadata"), copy.deepcopy(_part(job, "spec"))
    kept = {
        name: text
        for name, text in _part(about, "annotations").items()
        if not name.startswith(("kubectl.kubernetes.io/", "wattmesh/"))
    }
    made: Object = {
        "apiVersion": f"{kind.group}/{kind.version}",
        "kind": kind.name,
        "metadata": {
            "name": successor_name(str(about.get("name", "")), run, key),
            "namespace": about.get("namespace"),
            "labels": {**_part(about, "labels"), RUN_LABEL: run},
            "annotations": {**kept, KEY_ANNOTATION: key},
        },
        "spec": {**spec, "suspend": True},
    }
    if kind is JOBSET:
        work = _part(_part(_only_ranks(spec), "template"), "spec")
        work["parallelism"] = work["completions"] = hosts
        return made
    made["spec"]["trainer"] = {**_part(spec, "trainer"), "numNodes": hosts}
    return made


def pod_template(jobset: Object) -> Object:
    """Return the pod template of the JobSet that has a job's ranks.

    Raises:
        InputInvalid: it has several replicated jobs, and none says that it has the ranks.
    """
    work = _part(_part(_only_ranks(_part(jobset, "spec")), "template"), "spec")
    return copy.deepcopy(_part(work, "template"))


def _only_ranks(spec: Object) -> Object:
    listed = spec.get("replicatedJobs")
    jobs = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if len(jobs) > 1:
        jobs = [each for each in jobs if _is_trainer(each)]
    if len(jobs) != 1 or jobs[0].get("replicas", 1) != 1:
        raise InputInvalid(
            "the JobSet must have one replicated job, with `replicas: 1` and one pod for each "
            "host: which of its pods have ranks is not known otherwise."
        )
    return jobs[0]


def _is_trainer(replicated: Object) -> bool:
    labels = _part(_part(_part(replicated, "template"), "metadata"), "labels")
    return labels.get(TRAINER_STEP) == "trainer"


def _hosts(kind: JobKind, job: Object) -> int:
    spec = _part(job, "spec")
    if kind is TRAINJOB:
        found = _part(spec, "trainer").get("numNodes", 0)
    else:
        try:
            work = _part(_part(_only_ranks(spec), "template"), "spec")
        except InputInvalid:
            return 0
        found = work.get("completions", work.get("parallelism", 1))
    return found if type(found) is int else 0


def _part(of: Object, name: str) -> Object:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None
