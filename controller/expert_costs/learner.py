"""Learns what experts cost on the GPUs of live runs, and says what each run is told.

Invariant: a run that never reported expert-tokens costs nothing here; where the journal, the wall
clock or a counter is in doubt, what was published stays and grows old; and nothing is published
that the journal does not have, as a sentence and with all that it came from: whoever begins to lead
goes on from there.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from wattmesh.controller.expert_costs.kept import kept_text, read_kept
from wattmesh.controller.expert_costs.learning import Learning, taken_up
from wattmesh.controller.expert_costs.reports import TokenReports
from wattmesh.controller.expert_costs.sentences import (
    EXPERT_COSTS,
    begins,
    keeps_lean,
    lost_pairs,
    sentence,
    takes_lean,
    told_of,
    version_in,
)
from wattmesh.controller.expert_costs.steering import (
    renewal,
    scores_are_settled,
    steer,
    strength_of,
)
from wattmesh.controller.expert_costs.views import (
    NOT_REPORTED,
    ExpertCostsView,
    GpuCostLine,
    nothing_known,
)
from wattmesh.controller.journal.events import Event
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.costs import ClockAndLimit, OfflineSweep, TokenCost
from wattmesh.policies.experts.live_spans import (
    CounterMark,
    RunCount,
    counted,
    mark_at,
)
from wattmesh.policies.experts.published import (
    PublishedScores,
    Telling,
    learned_more,
    telling,
)
from wattmesh.policies.experts.scores import Scores, scored
from wattmesh.telemetry.readings import Quality

log = logging.getLogger(__name__)

EVERY_S = 10.0

MARKS = 64
"""Readings of a GPU that are kept: a count waits for the next one only."""

PATIENCE_S = 660.0
"""A count whose GPUs were not all read this long after it is used for those that were."""

FEWEST_TO_DIFFER = 2
"""Of a single span nobody knows its noise, so GPUs of one kind would seem to differ."""

FEWEST_SPANS = 5
"""Until then, costs that are not known well enough leave a run what it has (a new daemon knows less
than the one before told)."""


class CostLearner:
    """Turns every `EVERY_S`; handlers only read what it left."""

    def __init__(
        self,
        journal: Journal,
        loop_facts: LoopFacts,
        reports: TokenReports,
        sweeps: Callable[[str], Mapping[str, OfflineSweep]],
    ) -> None:
        """Keep the parts; `sweeps` gives the sweep of a run's GPUs by the run's name."""
        self._journal = journal
        self._loop_facts = loop_facts
        self._reports = reports
        self._sweeps = sweeps
        self._runs: dict[str, Learning] = {}
        self._marks: dict[str, deque[CounterMark]] = {}
        self._recalled: int | None = None

    def turn(self) -> None:
        """Read the counters, learn from what was counted, publish.

        Raises:
            JournalUnavailable: nothing is known now; the next turn goes on.
            Fenced: another daemon leads by now.
        """
        loop_facts, now = self._loop_facts, self._loop_facts.clock.now()
        epoch = loop_facts.lead.epoch
        if epoch is None or not loop_facts.leading:
            return
        if epoch != self._recalled:
            self._recall(now, epoch)
            self._recalled = epoch
        named = self._reports.runs()
        if not named:
            return
        if loop_facts.trusted.held_s() > 0:
            # Wall time was stepped: moments before and after it cannot be compared.
            self._marks.clear()
            for run in named:
                known = self._runs.get(run, Learning())
                known.costs = replace(known.costs, before=None)
        rows = {row.run: row for row in self._journal.runs.open(now) if row.run in named}
        if loop_facts.trusted.held_s() > 0:
            self._guard_only(rows, named, now)
            return
        self._reports.keep(rows)
        self._forget(rows)
        live = [row for row in rows.values() if row.state == "live"]
        self._read(live)
        for row in live:
            with loop_facts.isolation.alone(row.run, "learning what its experts cost"):
                self._learn(row, now)

    def _recall(self, now: datetime, epoch: int) -> None:
        """Begin to lead: go on from what the journal has, whoever learned it.

        What cannot be read is learned anew, and a sentence says so.
        """
        loop_facts = self._loop_facts
        self._runs.clear()
        self._marks.clear()
        rows = {row.run: row for row in self._journal.runs.open(now)}
        texts = self._journal.expert_learning.all()
        ended = texts.keys() - rows.keys()
        if ended and loop_facts.trusted.held_s() <= 0:
            self._journal.expert_learning.forget(ended, epoch=epoch)
        for run, text in texts.items():
            row = rows.get(run)
            if row is None:
                continue
            with loop_facts.isolation.alone(run, "recalling what its experts cost"):
                anew = self._recall_run(row, text, now)
                if anew:
                    said = f"{told_of(row)}what its experts cost is learned anew, as {anew}."
                    self._journal.events.add(EXPERT_COSTS, said, now)
                    log.info("%s", said)

    def _recall_run(self, row: RunRow, text: str, now: datetime) -> str:
        """Take up one run's; say why what is learned anew, "" where nothing is."""
        try:
            kept = read_kept(text)
        except InputInvalid as error:
            return str(error)
        kept_version = kept.telling.told.version if kept.telling.told is not None else 0
        newest = self._newest_told(row)
        if newest > kept_version:
            # Also its stop, if it was stopped meanwhile, would be taken back.
            return f"a wattmesh that keeps nothing has told it version {newest} meanwhile"
        monotonic_s = self._loop_facts.clock.monotonic()
        learning, anew = taken_up(kept, self._swept(row), now.timestamp(), monotonic_s)
        self._runs[row.run] = learning
        self._reports.remember(row.run, kept.launch, kept.seq)
        return anew

    def _newest_told(self, row: RunRow) -> int:
        """Return the newest version that the journal says a run was told; 0: none."""
        said = self._journal.events.list(1, kind=EXPERT_COSTS, begins=begins(row))
        return version_in(said[0].detail) if said else 0

    def _swept(self, row: RunRow) -> dict[str, OfflineSweep]:
        sweeps = self._sweeps(row.name)
        return {gpu: sweeps[gpu] for gpu in sorted(row.gpus_used) if gpu in sweeps}

    def _forget(self, rows: Mapping[str, RunRow]) -> None:
        ended = self._runs.keys() - rows.keys()
        if ended and self._recalled is not None:
            self._journal.expert_learning.forget(ended, epoch=self._recalled)
        for run in ended:
            del self._runs[run]

    def _guard_only(self, rows: Mapping[str, RunRow], named: Sequence[str], now: datetime) -> None:
        """Learn nothing of what was counted, but let quality stop a lean: that needs no clock."""
        for run in named:
            counts = self._reports.take(run, lambda _: True)
            row, learning = rows.get(run), self._runs.get(run)
            if row is None or learning is None or learning.telling.told is None:
                continue
            with self._loop_facts.isolation.alone(run, "learning what its experts cost"):
                for count in counts:
                    if learning.is_new(count):
                        steer(self._loop_facts, row, learning, count, differ=False)
                stops = learning.step is not None and learning.step.stopped
                if stops and not learning.telling.told.stopped and not self._is_frozen(row):
                    self._publish(row, sorted(row.gpus_used), learning, now)
                elif not learning.kept:
                    self._keep(row, learning, learning.telling, now)

    def _read(self, rows: list[RunRow]) -> None:
        """Add the newest reading of every GPU of these runs."""
        clocks = {gpu: row.clock_mhz for row in rows for gpu in row.gpus_used}
        for gpu in self._marks.keys() - clocks.keys():
            del self._marks[gpu]
        sampled = self._loop_facts.sampled
        seen = {each.gpu_uuid: each for each in (sampled.sample.readings if sampled else ())}
        for gpu, counter in self._journal.counters.newest(clocks).items():
            reading, marks = seen.get(gpu), self._marks.setdefault(gpu, deque(maxlen=MARKS))
            if reading is None or (marks and counter.at.timestamp() <= marks[-1].at_s):
                continue
            limit_w = reading.power_limit_w
            setting = ClockAndLimit(
                clock_mhz=clocks[gpu],
                limit_w=None if limit_w is None else round(limit_w),
            )
            at_s = counter.at.timestamp()
            same = bool(marks) and marks[-1].setting == setting
            marks.append(
                CounterMark(
                    at_s=at_s,
                    energy_j=counter.booked_mj / 1000,
                    dark_s=counter.unobserved_ms / 1000,
                    lit_s=counter.recovered_ms / 1000,
                    setting=setting,
                    # Between two readings a setting changed after the first one.
                    since_s=marks[-1].since_s if same else (marks[-1].at_s if marks else at_s),
                    simulated=reading.quality is Quality.SIMULATED,
                )
            )

    def _learn(self, row: RunRow, now: datetime) -> None:
        """Learn one run's newest counts, and publish unless somebody froze it."""
        learning = self._runs.setdefault(row.run, Learning())
        gpus, now_s = sorted(row.gpus_used), now.timestamp()
        newest_s = {gpu: marks[-1].at_s for gpu, marks in self._marks.items() if marks}

        def ready(count: RunCount) -> bool:
            read = all(newest_s.get(gpu, 0.0) >= count.at_s for gpu in count.tokens)
            return read or now_s - count.at_s > PATIENCE_S

        for count in self._reports.take(row.run, ready):
            if not learning.is_new(count):
                continue
            marks = {gpu: mark_at(self._marks.get(gpu, ()), count.at_s) for gpu in count.tokens}
            known = {gpu: mark for gpu, mark in marks.items() if mark is not None}
            marked = replace(count, marks=known)
            learning.costs = counted(learning.costs, marked, self._sweeps(row.name))
            scores = scored(gpus, learning.costs.costs, times=learning.costs.times)
            learning.telling = learned_more(learning.telling, scores)
            steer(self._loop_facts, row, learning, count, differ=not scores.neutral_because)
            lost = learning.newly_dropped()
            if lost:
                said = lost_pairs(row, lost)
                self._journal.events.add(EXPERT_COSTS, said, now)
                log.warning("%s", said)
        if not self._is_frozen(row):
            self._publish(row, gpus, learning, now)
        elif not learning.kept:
            self._keep(row, learning, learning.telling, now)

    def _is_frozen(self, row: RunRow) -> bool:
        return bool(row.frozen or self._journal.runs.frozen_all())

    def _publish(self, row: RunRow, gpus: list[str], learning: Learning, now: datetime) -> None:
        """Tell what counts as new, once the journal has it."""
        costs, told = learning.costs.costs, learning.telling.told
        newer, why, stays = self._newer(row, gpus, learning, now)
        if stays and stays != learning.stays:
            learning.stays = stays
            said = keeps_lean(row, stays)
            self._keep(row, learning, learning.telling, now, said)
            log.info("%s", said)
        elif learning.heard is not None and learning.heard.pending <= 0:
            learning.stays = ""
        if newer.told is not None and newer is not learning.telling:
            if told is not None and _lean(told) != _lean(newer.told):
                learning.loop.other_lean()
            # Written before it is told: what changes a training is in the journal first.
            said = sentence(row, newer.told, costs, why)
            self._keep(row, learning, newer, now, said)
            log.info("%s", said)
            learning.telling = newer
        elif not learning.kept:
            self._keep(row, learning, newer, now)
        if self._holds(gpus, costs, now):
            learning.held_at_s = self._loop_facts.clock.monotonic()

    def _newer(
        self, row: RunRow, gpus: list[str], learning: Learning, now: datetime
    ) -> tuple[Telling, str, str]:
        """Give what is told from now on, why the lean is another one, and why it is not."""
        costs, told = learning.costs.costs, learning.telling.told
        scores = scored(gpus, costs, times=learning.costs.times)
        spans = min((costs[gpu].spans if gpu in costs else 0 for gpu in gpus), default=0)
        if told is None and spans < (FEWEST_SPANS if scores.neutral_because else FEWEST_TO_DIFFER):
            return learning.telling, "", ""
        step = strength_of(self._loop_facts, row, learning)
        settled = scores_are_settled(self._loop_facts, row, learning)
        if told is None and settled and step.strength > 0:
            # What its experts have is not known here, and must stay.
            return learning.telling, "", ""
        # Without costs nothing is missing: all is learned anew, in another layout.
        few = told is not None and told.by_gpu.keys() == set(gpus) and _too_few(spans, scores)
        if told is not None and (not costs or settled or few):
            scores = Scores(by_gpu=told.by_gpu, neutral_because=told.neutral_because)
        if learning.step is not None and learning.step.strength != step.strength:
            learning.step = step  # so that it goes on from there, in mode `act` again
        takes, stays = renewal(self._loop_facts, row, learning, step.strength)
        takes = takes and told is not None and told.by_gpu.keys() == set(gpus)
        now_s = now.timestamp()
        newer = telling(
            learning.telling, scores, step.strength, now_s, stopped=step.stopped, renews=takes
        )
        moved = learning.newest.pending if takes and learning.newest is not None else 0.0
        return newer, "; ".join(each for each in (step.why, takes_lean(moved)) if each), stays

    def _keep(
        self, row: RunRow, learning: Learning, told: Telling, now: datetime, said: str = ""
    ) -> None:
        """Put it into the journal as it is after the newest count, with what is told."""
        if self._recalled is None:
            return
        monotonic_s = self._loop_facts.clock.monotonic()
        kept = learning.to_keep(told, self._swept(row), now.timestamp(), monotonic_s)
        event = Event(kind=EXPERT_COSTS, detail=said) if said else None
        self._journal.expert_learning.keep(
            row.run, kept_text(kept), now=now, epoch=self._recalled, event=event
        )
        learning.kept, learning.in_journal = True, learning.loop.judged

    def _holds(self, gpus: list[str], costs: Mapping[str, TokenCost], now: datetime) -> bool:
        """Return whether every GPU was read lately, and is as it was when it was learned."""
        for gpu in gpus:
            marks, cost = self._marks.get(gpu), costs.get(gpu)
            if not marks or cost is None or marks[-1].setting != cost.at:
                return False
            if now.timestamp() - marks[-1].at_s > PATIENCE_S:
                return False
        return True

    def view(self, row: RunRow, *, details: bool) -> ExpertCostsView:
        """Say what a run is told."""
        learning = self._runs.get(row.run)
        if not self._loop_facts.leading:
            return nothing_known(row.run, "this daemon stands by; the leader knows")
        if self._recalled != self._loop_facts.lead.epoch:
            return nothing_known(row.run, "this daemon has just begun to lead; ask again soon")
        if learning is None or learning.telling.told is None:
            why = self._why_nothing(row, learning)
            judged = learning.judged_in(row.incarnation) if learning is not None else None
            lines = _lines(learning) if details else ()
            return replace(nothing_known(row.run, why, lines), judged=judged)
        told, age_s = learning.telling.told, self._loop_facts.clock.monotonic() - learning.held_at_s
        return ExpertCostsView(
            run=row.run,
            version=told.version,
            strength=told.strength,
            age_s=min(max(age_s, 0.0), 1e9),
            scores=dict(told.by_gpu),
            neutral_because=_why_neutral(row, learning, told),
            stopped=told.stopped,
            renewal=told.renewal,
            judged=learning.judged_in(row.incarnation),
            gpus=_lines(learning) if details else (),
        )

    def _why_nothing(self, row: RunRow, learning: Learning | None) -> str:
        if row.state != "live":
            return f"the run is {row.state}; costs are learned while it trains"
        if row.run not in self._reports.runs():
            return NOT_REPORTED
        if learning is None or not learning.costs.costs:
            return (
                "no span was learned yet: it takes two save steps, 30 s apart, on GPUs that are "
                "read"
            )
        spans = min(each.spans for each in learning.costs.costs.values())
        return f"learned from {spans} spans of each GPU, which is too little to tell them apart"


def _lean(told: PublishedScores) -> tuple[Mapping[str, float], int]:
    """Return what decides an expert's score."""
    return told.by_gpu, told.renewal


def _too_few(spans: int, scores: Scores) -> bool:
    """Return whether scores say nothing yet: at another clock, or in another layout."""
    return spans < FEWEST_TO_DIFFER and not scores.neutral_because


def _why_neutral(row: RunRow, learning: Learning, told: PublishedScores) -> str:
    """Say why scores are 0: as it is now, since no version tells of another reason."""
    if not told.neutral_because or told.by_gpu.keys() != row.gpus_used or not learning.costs.costs:
        return told.neutral_because
    scores = scored(sorted(row.gpus_used), learning.costs.costs, times=learning.costs.times)
    return scores.neutral_because or told.neutral_because


def _lines(learning: Learning | None) -> tuple[GpuCostLine, ...]:
    if learning is None:
        return ()
    scores = learning.telling.told.by_gpu if learning.telling.told else {}
    unused = learning.costs.unused
    return tuple(
        GpuCostLine(
            gpu=gpu,
            joules_per_token=cost.joules_per_token,
            deviation=math.sqrt(max(0.0, cost.variance)),
            idle_w=cost.idle_w,
            spans=cost.spans,
            simulated=cost.simulated,
            score=scores.get(gpu, 0.0),
            clock_mhz=cost.at.clock_mhz,
            limit_w=cost.at.limit_w,
            unused=unused.get(gpu, ""),
        )
        for gpu, cost in sorted(learning.costs.costs.items())
    )
