"""Turn what a checked run reported into findings: ok, a problem and what to do, or unknown. Pure.

Invariant: what was not compared is unknown, never ok.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding, ok, problem, unknown
from wattmesh.reconfig.hook.attach_check.check_folder import (
    Attached,
    LeftOut,
    SaveStep,
    UnknownLoss,
)
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import Message, Progress, Transition

HOOK_SENTENCES = (
    (
        "still held in memory",
        "references",
        "let go of it before session.boundary(), or keep it in State.parts; until then this switch "
        "goes by restart only",
    ),
    (
        "the probe cannot be taken",
        "probe",
        "mend the error that the probe raises in this layout",
    ),
    (
        "the probe ",
        "probe",
        "compute the loss of one fixed batch, the same on every rank and in every layout; if the "
        "probe does so already, this layout computes another model",
    ),
    (
        "Does the loader follow session.position?",
        "data",
        "make the loader anew after each build, from session.state.position.samples, and read each "
        "sample on one data parallel rank",
    ),
    (
        "ranks hold different values",
        "buffers",
        "reduce that value over the ranks, or register the buffer with persistent=False",
    ),
    (
        "gradients are live",
        "gradients",
        "call optimizer.zero_grad() after optimizer.step(), before session.boundary()",
    ),
    ("report:", "report", "count whole tokens and samples over all ranks"),
)
"""For the hook's sentences: words they contain, the check they belong to, and what to do."""

_ORDER = (CheckStatus.PROBLEM, CheckStatus.UNKNOWN, CheckStatus.OK)
_LOOK = "look at the log"
_LOOK_AT_LINE = "mend that line of your script"
_TRACEBACK = "; the log has the whole traceback"
"""The hook logs one only where code raised while a layout was brought up."""
_AGAIN = "mend the problems above, or name another layout, and check again"
_WRAPPED = re.compile(
    r"the boundary of step \d+ was left out \((.*)\)\. Training goes on; .*"
    r"|the checkpoint of step \d+ was not saved: (.*)"
    r"|(?:no checkpoint|not begun): (.*)",
    re.DOTALL,
)
_WHO = re.compile(r" \[group rank \d+(?: \(and \d+ more ranks\))?\]")
_PLACE = re.compile(r"\((/[^()\n]*:\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """Everything that was seen of one checked run.

    Attributes:
        layouts: those asked for, in the order of the walk.
        messages: the run's messages, in order.
        ended: how the script failed; "" if it did not.
    """

    layouts: tuple[Layout, ...]
    messages: tuple[Message, ...]
    ended: str = ""

    @property
    def attached(self) -> Attached | None:
        """What the script gave to `attach`; None while it has not."""
        return next((each for each in self.messages if isinstance(each, Attached)), None)

    @property
    def save_steps(self) -> list[SaveStep]:
        """Every save step, and every step that waited to be one."""
        return [each for each in self.messages if isinstance(each, SaveStep)]

    @property
    def switches(self) -> "list[CheckedSwitch]":
        """Every switch that was begun and has ended."""
        found: list[CheckedSwitch] = []
        before: Layout | None = None
        for each in self.messages:
            before = each.layout if isinstance(each, Progress) else before
            if isinstance(each, Transition) and each.state in FINAL and before is not None:
                to = self.layouts[int(each.switch_id.removeprefix("walk-"))]
                # The final state is reported again when the first step at normal pace has ended.
                if not found or found[-1].end.switch_id != each.switch_id:
                    found.append(CheckedSwitch(before=before, to=to, end=each))
        return found

    def untold(self, compared: Sequence[SaveStep], *, least_ranks: int = 1) -> str:
        """Name the layouts that trained but have no save step in `compared`; "" for none."""
        begun = [each.layout for each in self.save_steps[:1]]
        trained = {*begun, *(each.to for each in self.switches if each.good)}
        missing = trained - {each.layout for each in compared}
        return ", ".join(sorted(str(each) for each in missing if each.world_size >= least_ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSwitch:
    """One switch from its layout `before`, and the report of its end."""

    before: Layout
    to: Layout
    end: Transition

    @property
    def good(self) -> bool:
        """Whether the run trains in the new layout."""
        return self.end.state is SwitchState.CONFIRMED

    @property
    def words(self) -> str:
        """The switch as `LAYOUT -> LAYOUT`."""
        return f"{self.before} -> {self.to}"

    def number(self, name: str) -> float | None:
        """A number of its evidence; None where it was not measured."""
        found = self.end.evidence.get(name)
        return float(found) if isinstance(found, int | float) else None


def judge(seen: CheckedRun) -> list[Finding]:
    """Give every finding: problems first, then what is unknown, then what is well."""
    found = [*_switches(seen), *_not_reached(seen)]
    causes = {_cause(each.end.detail) for each in seen.switches}
    for where, sentence in _troubles(seen):
        if _cause(sentence) not in causes:
            causes.add(_cause(sentence))
            found.append(_finding(sentence, where))
    found += [
        problem(
            "state",
            f"no switch of this run can be made: {_core(why)}",
            "change that in the script; where the daemon acts, attach refuses to start this run",
        )
        for why in sorted({each.for_good for each in seen.save_steps if each.for_good})
    ]
    found += [
        problem(
            "loss",
            f"{each.layout}, step {each.step}: the script reported the loss {each.loss}",
            "find the step at which it stops being finite; an equal probe proves nothing of a "
            "model that does not train",
        )
        for each in seen.messages
        if isinstance(each, UnknownLoss)
    ]
    bad = {each.check for each in found if each.verdict is CheckStatus.PROBLEM}
    overall = (
        ("references", _references(seen)),
        ("probe", _probe(seen)),
        ("data", _data(seen)),
        ("buffers", _buffers(seen)),
    )
    found += [finding for check, finding in overall if check not in bad]
    attached = seen.attached
    if attached is not None and attached.own_saves:
        found.append(
            unknown(
                "save",
                "your own checkpointer (save=) was not called, so that nothing of yours is written",
                "try it in a run of its own, in a folder that you can lose",
            )
        )
    if seen.ended:
        found.append(_with_place(problem("script", seen.ended, _LOOK)))
    return sorted(found, key=lambda each: _ORDER.index(each.verdict))


def worst(findings: Sequence[Finding]) -> CheckStatus:
    """Give the verdict on everything: one problem is a problem, one unknown is not ok."""
    return min((each.verdict for each in findings), key=_ORDER.index, default=CheckStatus.UNKNOWN)


def _switches(seen: CheckedRun) -> Iterator[Finding]:
    for each in seen.switches:
        if each.good:
            yield ok(
                "switch",
                f"{each.words}: in place at step {each.end.step}, in {each.end.elapsed_s:.2f} s",
            )
        else:
            yield _finding(each.end.detail, f"{each.words}: ", of_switch=True)
    for left in seen.messages:
        if isinstance(left, LeftOut) and "seekable" in left.why:
            yield problem(
                "data",
                f"{left.layout}: not tried: {left.why}",
                "leave it out of the catalogue, or make the loader seek by global sample",
            )


def _not_reached(seen: CheckedRun) -> Iterator[Finding]:
    met = len(seen.switches) + sum(isinstance(each, LeftOut) for each in seen.messages)
    begins = seen.attached is not None and seen.layouts[:1] == (seen.attached.layout,)
    last = seen.save_steps[-1].step if seen.save_steps else 0
    for layout in seen.layouts[met or begins :]:
        yield unknown(
            "switch",
            f"{layout}: not reached; the last save step was {last}",
            "mend the problems above, or let the script train for longer, and check again",
        )


def _troubles(seen: CheckedRun) -> Iterator[tuple[str, str]]:
    """Give (layout and step, trouble) for each trouble reported at a save step."""
    for each in seen.save_steps:
        if each.trouble and each.trouble != each.for_good:
            yield f"{each.layout}, step {each.step}: ", each.trouble
    steps = seen.save_steps
    if steps and steps[-1].deferred:
        waiting = next(each for each in steps if each.deferred == steps[-1].deferred)
        yield f"nothing could be saved from step {waiting.step} on: ", waiting.deferred


def _finding(sentence: str, prefix: str, *, of_switch: bool = False) -> Finding:
    core = _core(sentence)
    look = _LOOK_AT_LINE if _PLACE.search(core) else _LOOK
    check, do = next(
        ((check, do) for words, check, do in HOOK_SENTENCES if words in core), ("switch", look)
    )
    raised = do == look or "cannot be taken" in core
    if of_switch and raised and _PLACE.search(core) and not _WRAPPED.fullmatch(sentence):
        do += _TRACEBACK
    return _with_place(problem(check, f"{prefix}{core}", do))


def _with_place(found: Finding) -> Finding:
    place = _PLACE.search(found.text)
    return replace(found, where=place[1]) if place else found


def _core(sentence: str) -> str:
    """Strip what the hook adds around a cause at each boundary, and the ranks."""
    match = _WRAPPED.fullmatch(sentence)
    inner = next(filter(None, match.groups()), sentence) if match else sentence
    return _WHO.sub("", inner)


def _cause(sentence: str) -> str:
    """Strip the numbers too, so the same cause at another step compares equal."""
    return re.sub(r"\d+", "", _core(sentence))


def _references(seen: CheckedRun) -> Finding:
    shares = [share for each in seen.switches if (share := each.number("held_share")) is not None]
    if not shares:
        return unknown(
            "references",
            "no layout was torn down, so what still refers to an old model was not looked for",
            _AGAIN,
        )
    return ok(
        "references",
        f"at most {max(shares):.1%} of a layout was still in memory after its teardown "
        f"({len(shares)} of {len(seen.switches)} switches)",
    )


def _probe(seen: CheckedRun) -> Finding:
    found = []
    for each in seen.switches:
        before, after = each.number("probe_before"), each.number("probe_after")
        allowed = each.number("probe_allowed")
        if each.good and before is not None and after is not None and allowed is not None:
            found.append((abs(after - before) / max(abs(before), 1e-300), allowed, each))
    if not found:
        return unknown("probe", "no switch came as far as its probe", _AGAIN)
    moved, allowed, worst_of = max(found, key=lambda each: each[0] / each[1])
    noise = worst_of.number("probe_noise")
    floor = "that is within rounding" if noise is None else f"the noise measured is {noise:.1e}"
    return ok(
        "probe",
        f"it moved by at most {moved:.1e} (relative; {worst_of.words}), allowed is {allowed:.1e}: "
        f"{floor}",
    )


def _data(seen: CheckedRun) -> Finding:
    done = [each for each in seen.save_steps if not each.deferred and each.told >= 0]
    silent = sorted({str(each.layout) for each in done if not each.told})
    missing = seen.untold(done)
    if missing:
        return unknown(
            "data", f"no save step came as far as comparing samples in {missing}", _AGAIN
        )
    if silent:
        where = f" in {', '.join(silent)}"
        return unknown(
            "data",
            f"the script does not say which samples it read{where}, so samples read twice or not "
            "at all would not be seen",
            "tell session.report(data=...) the numbers of the samples that this rank read",
        )
    return ok(
        "data",
        f"at {len(done)} save steps the samples were the run's next ones, each as often as any "
        "other",
    )


def _buffers(seen: CheckedRun) -> Finding:
    compared = [
        each for each in seen.save_steps if each.ranks > 1 and not (each.deferred or each.trouble)
    ]
    missing = seen.untold(compared, least_ranks=2)
    if missing or not compared:
        where = f" in {missing}" if missing else ""
        return unknown(
            "buffers",
            f"there was no checkpoint of several ranks{where}, so what they hold was not compared",
            _AGAIN,
        )
    return ok(
        "buffers",
        f"at {len(compared)} save steps all ranks held the same parameters, buffers and slots; "
        "what is persistent=False is not compared",
    )
