"""The alarm clock of a run that sleeps: a CronJob that lets the held job begin. Pure.

It is the cluster's own, and needs nothing of ours to be alive. Its pod is one of the job's own,
without GPUs, that runs `wattmesh.integrations.kubernetes ring`.
"""

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.integrations.kubernetes.job_kinds import KEY_ANNOTATION, RUN_LABEL

Object = dict[str, Any]

SHORTEST = timedelta(minutes=2)
"""A CronJob knows minutes, and one that was made too late would ring a year later."""

RING_TRIES = 100
KEPT_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def path(namespace: str, name: str = "") -> str:
    """Return the path of one CronJob, or of all."""
    return f"/apis/batch/v1/namespaces/{namespace}/cronjobs" + (f"/{name}" if name else "")


def alarm_name(job: str) -> str:
    """Name the alarm of a held job."""
    return f"{job}-wake"


def rings_at(wakes_at: datetime, now: datetime) -> datetime:
    """Return the last whole minute before a time at which an alarm can ring.

    Raises:
        InputInvalid: it is too near.
    """
    minute = wakes_at.astimezone(UTC).replace(second=0, microsecond=0)
    if minute - now < SHORTEST:
        raise InputInvalid(
            f"the run is to wake at {wakes_at.isoformat()}, in less than "
            f"{SHORTEST.total_seconds():.0f} s: an alarm on Kubernetes needs longer."
        )
    return minute


def schedule(at: datetime) -> str:
    """Say in cron's words when to ring."""
    return f"{at.minute} {at.hour} {at.day} {at.month} *"


def alarm(held: Object, template: Object, words: Sequence[str], at: datetime) -> Object:
    """Return the CronJob that runs `words` in a pod of `template` at a time.

    `held`: metadata of the job that it wakes; its labels and annotations say whose both are.
    """
    pod = copy.deepcopy(template)
    spec = pod.setdefault("spec", {})
    spec["restartPolicy"] = "OnFailure"
    for each in ("hostname", "subdomain", "schedulingGates", "initContainers"):
        spec.pop(each, None)
    containers = spec.get("containers") or []
    spec["containers"] = [_ringing(each, words) for each in containers[:1]]
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            "name": alarm_name(held["name"]),
            "namespace": held["namespace"],
            "labels": {RUN_LABEL: held["labels"][RUN_LABEL]},
            "annotations": {KEY_ANNOTATION: held["annotations"][KEY_ANNOTATION]},
        },
        "spec": {
            "schedule": schedule(at),
            "timeZone": "Etc/UTC",
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": RING_TRIES,
                    "template": {"metadata": _labels(pod), "spec": spec},
                }
            },
        },
    }


def _labels(pod: Object) -> Object:
    """Keep the labels of people; those of controllers would be claimed by them."""
    found = (pod.get("metadata") or {}).get("labels") or {}
    theirs = ("jobset.sigs.k8s.io/", "batch.kubernetes.io/", "trainer.kubeflow.org/")
    return {"labels": {name: text for name, text in found.items() if not name.startswith(theirs)}}


def _ringing(container: Object, words: Sequence[str]) -> Object:
    """Turn the container of ranks into one that rings: it needs no GPU."""
    ringing = copy.deepcopy(container)
    ringing.pop("args", None)
    for each in ("ports", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        ringing.pop(each, None)
    ringing["command"] = list(words)
    resources = {}
    for kind, asked in (ringing.get("resources") or {}).items():
        if isinstance(asked, dict):
            resources[kind] = {what: n for what, n in asked.items() if what in KEPT_RESOURCES}
    ringing["resources"] = resources
    return ringing
