"""Decides which GPU is written next, and to what. Pure.

Level-triggered: every heartbeat passes in everything that is known and nothing is remembered here,
so the GPUs end in the same state after a lost heartbeat, a restart or a repeated wish.

Invariant: no GPU is set above the limit that was found on it or below its floor; where both kinds
of lease apply, the lower value counts; a lever that nobody wishes set goes back to its baseline.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from wattmesh.telemetry.actuator.rules import refusals
from wattmesh.telemetry.actuator.rules.facts import Cause, GpuFacts, GpuWrite
from wattmesh.telemetry.actuator.rules.leases import ControllerWishes
from wattmesh.telemetry.actuator.rules.refusals import Gpu, Refusal, RefusalEffect
from wattmesh.telemetry.actuator.settings import ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import LeaseKind, Wish

STEP_UP_EVERY_S = 5.0
"""Between two steps back up (or `write_every_s` if that is less): ten steps of a tenth of the
range bring a GPU back within 50 s, and a thousand GPUs do not jump in one second."""

_LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuatorDecision:
    """The acts of one heartbeat, and the wishes that are refused.

    Attributes:
        acts: in order. Acts of one group succeed together or are taken back together.
        troubles: by GPU, why a wish for it is not obeyed.
        settable: GPUs on which an economy wish would be obeyed now.
    """

    acts: tuple[GpuWrite, ...]
    troubles: Mapping[str, str]
    settable: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCeiling:
    """The highest clock and cap that a lease allows; None: any."""

    clock_mhz: float | None = None
    cap_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The rules' working record for a GPU that answers."""

    gpu: Gpu
    facts: GpuFacts
    economy: LeaseCeiling = field(default_factory=LeaseCeiling)
    obligation: LeaseCeiling = field(default_factory=LeaseCeiling)
    holder: str = ""
    clock_untouched: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lever:
    """One lever of one GPU on a common scale: a higher value means more power.

    `base`: its baseline. `now`: its present value. `step`: the largest change per step.
    `economy`, `obligation`: the ceilings of the two kinds of lease; None: none.
    """

    base: float
    now: float
    step: float
    economy: float | None
    obligation: float | None


def decide(
    gpus: Mapping[str, Gpu],
    heard: ControllerWishes,
    claims: Mapping[str, ProcessClaim],
    settings: ActuatorSettings,
    now_s: float,
    *,
    at_once: bool = False,
) -> ActuatorDecision:
    """Decide the acts of one heartbeat.

    Args:
        gpus: every GPU of the node that answers, is wished for, or has something of ours.
        heard: leases that are live now.
        claims: whose processes belong to a holder.
        settings: what the operator allows.
        now_s: seconds since boot.
        at_once: restore in one step, because no heartbeat will follow.
    """
    refused = _refused_holders(gpus, heard, claims, settings)
    troubles: dict[str, str] = {}
    cases: list[_Case] = []
    for uuid, gpu in gpus.items():
        case, trouble = _case(gpu, heard, refused, settings)
        if trouble:
            troubles[uuid] = trouble
        if case is not None:
            cases.append(replace(case, at_once=True) if at_once else case)
    acts = [act for case in cases for act in _acts(case, settings, now_s)]
    late = {a.group for a in acts if a.group and not _due(gpus[a.gpu_uuid], settings, now_s)}
    return ActuatorDecision(
        acts=tuple(act for act in acts if act.group not in late),
        troubles=troubles,
        settable=frozenset(
            uuid for uuid, gpu in gpus.items() if not refusals.standing(gpu, settings)
        ),
    )


def _refused_holders(
    gpus: Mapping[str, Gpu],
    heard: ControllerWishes,
    claims: Mapping[str, ProcessClaim],
    settings: ActuatorSettings,
) -> dict[str, Refusal]:
    """Judge all economy wishes of each holder together."""
    wishes: dict[str, list[tuple[Wish, Gpu]]] = {}
    for (uuid, kind), lease in heard.leases.items():
        if kind is LeaseKind.ECONOMY:
            wishes.setdefault(lease.wish.holder, []).append((lease.wish, gpus[uuid]))
    judged = {
        holder: refusals.economy(each, refusals.claims_of(claims, holder), settings)
        for holder, each in wishes.items()
    }
    return {holder: each for holder, each in judged.items() if each is not None}


def _case(
    gpu: Gpu, heard: ControllerWishes, refused: Mapping[str, Refusal], settings: ActuatorSettings
) -> tuple[_Case | None, str]:
    """Combine what both kinds of lease ask of a GPU; the text says what is refused."""
    thrift = heard.wish(gpu.gpu_uuid, LeaseKind.ECONOMY)
    duty = heard.wish(gpu.gpu_uuid, LeaseKind.OBLIGATION)
    no_thrift = refused.get(thrift.holder) if thrift else None
    no_duty = refusals.obligation(duty, gpu, settings) if duty else None
    trouble = " · ".join(dict.fromkeys(each.sentence for each in (no_duty, no_thrift) if each))
    facts = gpu.facts
    if facts is None or gpu.failed:
        return None, trouble
    case = _Case(
        gpu=gpu,
        facts=facts,
        economy=_ceiling(thrift, no_thrift, gpu, facts, settings),
        obligation=_ceiling(duty, _kept(no_duty), gpu, facts, settings),
        holder=thrift.holder if thrift else "",
        clock_untouched=gpu.watch.hands_off and bool(thrift or duty),
        at_once=facts.processes == ()
        or (no_thrift is not None and no_thrift.then is RefusalEffect.BACK_AT_ONCE),
    )
    return case, trouble


def _kept(refusal: Refusal | None) -> Refusal | None:
    """Keep an obligation in force although it could not be taken on anew."""
    return refusal and Refusal(sentence=refusal.sentence, then=RefusalEffect.KEEP)


def _ceiling(
    wish: Wish | None,
    refusal: Refusal | None,
    gpu: Gpu,
    facts: GpuFacts,
    settings: ActuatorSettings,
) -> LeaseCeiling:
    """Return what a wish allows, given the reason against it.

    `RefusalEffect.KEEP`: the lever is not lowered further, and raised at most to the wished value.
    """
    if wish is None or (refusal is not None and refusal.then > RefusalEffect.KEEP):
        return LeaseCeiling()
    clock, cap = wish.clock_mhz, None if wish.cap_w is None else round(wish.cap_w, 3)
    if refusal is None:
        return LeaseCeiling(clock_mhz=clock, cap_w=cap)
    clock_now = gpu.held.lock_mhz or settings.baseline_lock_mhz or facts.highest_mhz
    cap_now = facts.requested_w if gpu.held.set_w is None else gpu.held.set_w
    return LeaseCeiling(
        clock_mhz=max(clock, clock_now) if clock is not None and clock_now is not None else None,
        cap_w=max(cap, cap_now) if cap is not None else None,
    )


def _acts(case: _Case, settings: ActuatorSettings, now_s: float) -> Iterator[GpuWrite]:
    gpu, facts = case.gpu, case.facts
    clock = _clock_lever(case, settings)
    moved = None if case.clock_untouched else _move(clock, case, settings, now_s)
    if moved is not None:
        to, cause = moved
        at_base = to >= clock.base - _LEAST
        yield GpuWrite(
            gpu_uuid=gpu.gpu_uuid,
            cause=cause,
            group=case.holder if cause is Cause.ECONOMY else "",
            clock=True,
            clock_mhz=settings.baseline_lock_mhz if at_base else round(to),
        )
    cap = _cap_lever(case, settings)
    moved = _move(cap, case, settings, now_s)
    if moved is not None:
        to, cause = moved
        yield GpuWrite(
            gpu_uuid=gpu.gpu_uuid,
            cause=cause,
            group=case.holder if cause is Cause.ECONOMY else "",
            cap=True,
            cap_w=round(to, 3),
            found_w=None if to >= cap.base - _LEAST else cap.base,
            seen_w=facts.requested_w,
        )


def _clock_lever(case: _Case, settings: ActuatorSettings) -> _Lever:
    """Scale the SM clock; without a known range its step is unlimited."""
    low, high = case.facts.lowest_mhz, case.facts.highest_mhz
    lock = case.gpu.held.lock_mhz
    base = float(settings.baseline_lock_mhz or high or 1e9)
    return _Lever(
        base=base,
        now=base if lock is None else min(float(lock), base - 2 * _LEAST),
        step=settings.step_share * (high - low) if low and high else 1e9,
        economy=case.economy.clock_mhz,
        obligation=case.obligation.clock_mhz,
    )


def _cap_lever(case: _Case, settings: ActuatorSettings) -> _Lever:
    """Scale the power limit; its baseline is the limit that was found.

    After an interrupted write (`prior_w` is set) the board's own value counts.
    """
    facts, held = case.facts, case.gpu.held
    base = facts.requested_w if held.found_w is None else held.found_w
    now = facts.requested_w if held.set_w is None or held.prior_w is not None else held.set_w
    return _Lever(
        base=base,
        now=now if held.found_w is None else min(now, base - 2 * _LEAST),
        step=settings.step_share * (facts.max_w - facts.min_w),
        economy=case.economy.cap_w,
        obligation=case.obligation.cap_w,
    )


def _move(
    lever: _Lever, case: _Case, settings: ActuatorSettings, now_s: float
) -> tuple[float, Cause] | None:
    """Return the next value of a lever and the cause; None when it stays.

    An obligation lowers it in one step; economy lowers it, and a restore raises it, step by step.
    """
    wished = [each for each in (lever.economy, lever.obligation) if each is not None]
    target = min([lever.base, *wished])
    if lever.obligation is not None and min(lever.obligation, lever.base) < lever.now - _LEAST:
        return min(lever.obligation, lever.base), Cause.OBLIGATION
    if target < lever.now - _LEAST:
        return max(target, lever.now - lever.step), Cause.ECONOMY
    if target <= lever.now + _LEAST / 2:
        return None
    if case.at_once:
        return target, Cause.RESTORE
    wrote_s = case.gpu.watch.wrote_s
    pause_s = min(settings.write_every_s, STEP_UP_EVERY_S)
    if wrote_s is not None and now_s < wrote_s + pause_s:
        return None
    return min(target, lever.now + lever.step), Cause.RESTORE


def _due(gpu: Gpu, settings: ActuatorSettings, now_s: float) -> bool:
    """Tell whether `write_every_s` has passed since the last write."""
    wrote_s = gpu.watch.wrote_s
    return wrote_s is None or now_s >= wrote_s + settings.write_every_s
