"""Kubernetes as what holds a run's next launch: a suspended job, and for a sleep an alarm.

The held job is this one's own object under another name and in another size, made before this one
leaves. For another size the leaving job lets it begin as its last act; for a sleep a CronJob of the
cluster does.

Invariant: the launch book says that a job is asked for before the API server is, and its name
follows from run and key, so that it is never made twice; the book says who may train, so a job that
begins once too often ends at once. What is held looks as it was asked for, or is withdrawn.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable, WattmeshError
from wattmesh.integrations.kubernetes import alarm, job_kinds
from wattmesh.integrations.kubernetes.client import KubernetesClient, ObjectConflict
from wattmesh.integrations.kubernetes.job_kinds import JOBSET, JobKind, KnownJob
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.hosts.launcher import size_of
from wattmesh.reconfig.launcher.launch_book import BookedState, LaunchBook, LaunchRecord

log = logging.getLogger(__name__)

ACT_S = 60.0
"""How long one act may take, whatever it has to ask of the API server."""

CLOCK_S = 2.0
"""By how much the server's clock may be behind ours unheeded."""

MOST_HOSTS = 4096

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodJob:
    """The job that this pod is of.

    Attributes:
        per_host: how many ranks each pod takes.
        ring: the command line that lets a held job begin, without its name.
    """

    kind: JobKind
    namespace: str
    name: str
    per_host: int
    ring: Sequence[str] = ()

    @property
    def booked(self) -> str:
        """Its name in the launch book."""
        return self.booked_as(self.name)

    def booked_as(self, name: str) -> str:
        """Return the name of a job of this namespace in the launch book."""
        return f"{self.namespace}/{name}"

    def path(self, name: str = "") -> str:
        """Return the path of a job, or of this one."""
        return self.kind.path(self.namespace, name or self.name)


def state_of(record: LaunchRecord, job: KnownJob | None) -> HeldState | None:
    """Return what has become of a launch; None: as far as is known no job was made. Pure."""
    live = job is not None and not job.ended
    if record.state is BookedState.WITHDRAWN:
        return HeldState.WITHDRAWN
    if record.state is BookedState.BEGUN:
        return HeldState.STARTED if live else HeldState.ENDED
    if live:
        return HeldState.HELD
    return HeldState.WITHDRAWN if job is not None or record.jobs else None


def not_as_asked(held: KnownJob, hosts: int, run: str, key: str) -> str:
    """Say in what a job differs from what was asked for; "" if in nothing. Pure."""
    if (held.run, held.key) != (run, key):
        return "it belongs to another run, or to another order"
    if held.hosts != hosts:
        return f"it has {held.hosts} pods, not {hosts}"
    if held.ended:
        return "it has ended already"
    return "" if held.suspended else "it is not suspended: something on the cluster began it"


class KubernetesQueue:
    """Holds the launches of one run."""

    def __init__(
        self,
        client: KubernetesClient,
        folder: RunFolder,
        own: PodJob,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Make successors of `own`; `now` gives the wall clock."""
        self._client, self._own, self._now = client, own, now
        self._book = LaunchBook(folder)

    def find(self, key: str) -> HeldLaunch | None:
        """Return the launch that was queued under a key; None if there never was one."""
        with self._client.within(ACT_S):
            record = launch_book.find(self._book.read(), key)
            if record is None:
                return None
            state = state_of(record, self._job_of(record))
            return self._as_held(record, state) if state is not None else None

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Make a suspended job for a launch; an earlier one with the same key stays as it is."""
        with self._client.within(ACT_S):
            record = launch_book.find(self._book.read(), following.key)
            if record is not None and record.state is not BookedState.ASKED:
                found = self.find(following.key)
                if found is not None:
                    return found
            try:
                return self._make(following)
            except InputInvalid:
                self.withdraw(following.key)
                raise

    def withdraw(self, key: str) -> bool:
        """Let a launch never begin; False if it has begun already.

        Once the book says so no job of it trains, whether the server answers or not.
        """
        record = launch_book.find(self._book.read(), key)
        if record is None:
            return True
        with self._client.within(ACT_S):
            if not self._book.change(lambda records: launch_book.withdraw(records, key)):
                return False
            self.delete([record])
        return True

    def begin_now(self, key: str) -> HeldLaunch:
        """Let a held launch begin as soon as the one before has ended and there are nodes."""
        with self._client.within(ACT_S):
            record = launch_book.find(self._book.read(), key)
            if record is None:
                raise InputInvalid(f"no launch {key} was asked for in this run folder")
            job = self._job_of(record)
            state = state_of(record, job)
            if state is HeldState.HELD and job is not None and job.suspended:
                self._client.merge(self._own.path(job.name), {"spec": {"suspend": False}})
            if state is None:
                raise InputInvalid(f"no job was made for launch {key}")
            return replace(self._as_held(record, state), begins_at=None)

    def delete(self, withdrawn: Sequence[LaunchRecord]) -> None:
        """Delete jobs and alarms of launches that were withdrawn; failing that, say so."""
        for record in withdrawn:
            try:
                name = self._name_of(record)
                self.silence(record)
                job = self._client.get(self._own.path(name)) if name != self._own.name else None
                if job is not None and self._is_of(record, job):
                    self._client.delete(self._own.path(name))
            except WattmeshError as error:
                log.warning("the withdrawn launch %s is still there: %s", record.key, error)

    def silence(self, record: LaunchRecord) -> None:
        """Delete the alarm of a launch, if it has one."""
        if record.begins_at is not None:
            where = alarm.path(self._own.namespace, alarm.alarm_name(self._name_of(record)))
            self._client.delete(where)

    def job(self, name: str = "") -> Object:
        """Return a job's object, or this one's.

        Raises:
            InputInvalid: it is not there.
        """
        found = self._client.get(self._own.path(name))
        if found is None:
            raise InputInvalid(f"{self._own.kind.name} {name or self._own.name} is not there")
        return found

    def _make(self, following: NextLaunch) -> HeldLaunch:
        """Make the job and, for a sleep, its alarm, unless an earlier call did."""
        own, run, key = self._own, following.run, following.key
        hosts = size_of(following.ranks, MOST_HOSTS, own.per_host).hosts
        if following.ranks != hosts * own.per_host:
            raise InputInvalid(
                f"{following.ranks} ranks are no multiple of {own.per_host}, which each pod has."
            )
        begins_at = following.begins_at
        if begins_at is not None:
            alarm.rings_at(begins_at, self._now())
        record = LaunchRecord(
            key=key,
            run=run,
            ranks=following.ranks,
            state=BookedState.ASKED,
            begins_at=begins_at.isoformat() if begins_at else None,
            asked_by=own.booked,
        )
        made = job_kinds.successor(own.kind, self.job(), hosts, run, key)
        self._book.change(lambda records: (launch_book.ask(records, record), None))
        asked_at = self._now()
        held = self._create(own.kind.path(own.namespace), made)
        known = job_kinds.facts(own.kind, held)
        if wrong := not_as_asked(known, hosts, run, key):
            raise InputInvalid(f"{own.kind.name} {known.name} is not as it was asked for: {wrong}")
        if begins_at is not None:
            self._set_alarm(made["metadata"], known, begins_at, asked_at)
        jobs = [own.booked_as(known.name)]
        noted = self._book.change(lambda records: launch_book.note(records, key, jobs))
        if noted is None or noted.state is BookedState.WITHDRAWN:
            # Another launch began meanwhile: no job of this one may train any more.
            self.delete([record])
            return self._as_held(record, HeldState.WITHDRAWN)
        return self._as_held(record, HeldState.HELD)

    def _set_alarm(
        self, about: Object, held: KnownJob, begins_at: datetime, asked_at: datetime
    ) -> None:
        """Make the CronJob, by the server's clock where that one is behind ours."""
        own = self._own
        behind = asked_at - held.created_at if held.created_at else timedelta()
        behind = behind if behind > timedelta(seconds=CLOCK_S) else timedelta()
        at = alarm.rings_at(begins_at - behind, asked_at - behind)
        jobset = self._client.get(JOBSET.path(own.namespace, own.name))
        if jobset is None:
            raise InputInvalid(f"JobSet {own.name} is not there: its pods are what an alarm needs")
        template = job_kinds.pod_template(jobset)
        words = [*own.ring, f"--key={held.key}"]
        made = alarm.alarm(about, template, words, at)
        spec = self._create(alarm.path(own.namespace), made).get("spec") or {}
        if spec.get("schedule") != alarm.schedule(at) or spec.get("suspend"):
            raise InputInvalid(f"the alarm {alarm.alarm_name(held.name)} is not as it was made")

    def _create(self, path: str, made: Object) -> Object:
        """Create an object, or return the one of its name that an earlier call made.

        Raises:
            SourceUnavailable: it is not known whether there is one.
        """
        try:
            return self._client.create(path, made)
        except (ObjectConflict, SourceUnavailable) as error:
            found = self._client.get(f"{path}/{made['metadata']['name']}")
            if found is None:
                raise SourceUnavailable(str(error)) from error
            return found

    def _job_of(self, record: LaunchRecord) -> KnownJob | None:
        """Return the job of a launch; None if it is not there, or is another launch's."""
        job = self._client.get(self._own.path(self._name_of(record)))
        return job_kinds.facts(self._own.kind, job) if job and self._is_of(record, job) else None

    def _is_of(self, record: LaunchRecord, job: Object) -> bool:
        known = job_kinds.facts(self._own.kind, job)
        return (known.run, known.key) == (record.run, record.key)

    def _name_of(self, record: LaunchRecord) -> str:
        return job_kinds.successor_name(self._own.name, record.run, record.key)

    def _as_held(self, record: LaunchRecord, state: HeldState) -> HeldLaunch:
        return HeldLaunch(
            key=record.key,
            name=f"{self._own.kind.name} {self._own.booked_as(self._name_of(record))}",
            state=state,
            begins_at=datetime.fromisoformat(record.begins_at) if record.begins_at else None,
        )
