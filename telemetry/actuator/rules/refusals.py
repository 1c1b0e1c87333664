"""Why a wish is not obeyed, each as a sentence with the next step. Pure.

Invariant: an economy wish is refused for all GPUs of a holder or for none; an obligation is refused
GPU by GPU, because a cap that one GPU cannot keep is no reason to lift it from the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from wattmesh.telemetry.actuator.rules.facts import (
    TROUBLED,
    GpuFacts,
    GpuWatch,
    LockAndCap,
    Reasons,
)
from wattmesh.telemetry.actuator.rules.watching import SAME_W
from wattmesh.telemetry.actuator.settings import ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Wish

KNOWN_BOARDS = {"V100", "A30", "A40", "A100", "A800", "L4", "L40", "L40S"}
KNOWN_BOARDS |= {"H100", "H200", "H800", "GH200", "B200", "B300", "GB200", "GB300"}
"""Models whose locks and limits behave as docs/safety.md says; each is matched as a whole word."""


class RefusalEffect(IntEnum):
    """What happens to a lock or cap already in force; of several reasons the highest counts."""

    KEEP = 1
    STEP_BACK = 2
    BACK_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a wish is refused, and what happens to what is in force."""

    sentence: str
    then: RefusalEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The rules' input for one GPU.

    Attributes:
        facts: its readings; None: it does not answer.
        failed: why the last write to it failed, while its pause lasts; else "".
    """

    gpu_uuid: str
    facts: GpuFacts | None
    held: LockAndCap
    watch: GpuWatch
    failed: str = ""


def economy(
    wishes: Sequence[tuple[Wish, Gpu]], claim: ProcessClaim | None, settings: ActuatorSettings
) -> Refusal | None:
    """Judge all wishes of one holder together.

    Args:
        wishes: of one holder, each with its GPU.
        claim: which processes are the holder's; None: nobody said.
        settings: what the operator allows.

    Returns:
        the reason with the highest `then`; None: the wishes may be obeyed.
    """
    found: list[Refusal] = []
    for wish, gpu in wishes:
        found += _against_any_write(gpu, settings)
        found += _against_wished_values(wish, gpu, settings)
        found += _against_lowering_now(gpu)
        found += _strangers(wish, gpu, claim)
    found += _absent(wishes, claim)
    return max(found, key=lambda each: each.then, default=None)


def obligation(wish: Wish, gpu: Gpu, settings: ActuatorSettings) -> Refusal | None:
    """Judge an operator's cap on one GPU; heat and whose processes run do not matter to it."""
    return next(
        iter([*_against_any_write(gpu, settings), *_against_wished_values(wish, gpu, settings)]),
        None,
    )


def standing(gpu: Gpu, settings: ActuatorSettings) -> str:
    """Say why no economy wish would be obeyed on a GPU now; "" when one would."""
    found = [*_against_any_write(gpu, settings), *_against_lowering_now(gpu)]
    return found[0].sentence if found else ""


def _against_any_write(gpu: Gpu, settings: ActuatorSettings) -> Iterator[Refusal]:
    name, facts = gpu.gpu_uuid, gpu.facts
    if gpu.watch.blocked:
        yield Refusal(sentence=gpu.watch.blocked, then=RefusalEffect.BACK_AT_ONCE)
    if gpu.failed:
        yield Refusal(sentence=gpu.failed, then=RefusalEffect.KEEP)
    if facts is None:
        yield Refusal(
            sentence=f"{name} does not answer: look at nvidia-smi", then=RefusalEffect.KEEP
        )
        return
    if facts.shared:
        yield Refusal(
            sentence=f"{name} is shared ({facts.shared}): it is observed and never set",
            then=RefusalEffect.BACK_AT_ONCE,
        )
    if facts.profile:
        yield Refusal(
            sentence=f"{name} runs a workload power profile, which sets clocks and limits itself; "
            "clear it first",
            then=RefusalEffect.STEP_BACK,
        )
    elif facts.profile is None:
        yield Refusal(
            sentence=f"{name} does not say whether a workload power profile sets its clocks",
            then=RefusalEffect.KEEP,
        )
    if not facts.persistence:
        yield Refusal(
            sentence=f"persistence mode of {name} is off: what is set would be lost unseen; "
            "`nvidia-smi -pm 1`, or run nvidia-persistenced",
            then=RefusalEffect.STEP_BACK,
        )
    if not known_board(facts.board, settings.boards):
        yield Refusal(
            sentence=f"{name} is a {facts.board!r}, which wattmesh was not tried on; add the "
            "name to actuator.boards if you have tried it",
            then=RefusalEffect.STEP_BACK,
        )


def _against_lowering_now(gpu: Gpu) -> Iterator[Refusal]:
    facts = gpu.facts
    if facts is None:
        return
    if facts.reasons is None:
        yield Refusal(
            sentence=f"{gpu.gpu_uuid} does not say why its clock is what it is: nothing is lowered",
            then=RefusalEffect.KEEP,
        )
    elif trouble := facts.reasons & TROUBLED:
        words = ", ".join(each.name or "" for each in Reasons(trouble)).lower().replace("_", " ")
        yield Refusal(
            sentence=f"{gpu.gpu_uuid} throttles itself ({words}): look at cooling and power supply",
            then=RefusalEffect.KEEP,
        )


def _against_wished_values(wish: Wish, gpu: Gpu, settings: ActuatorSettings) -> Iterator[Refusal]:
    facts = gpu.facts
    if facts is None:
        return
    if wish.cap_w is not None:
        found_w = facts.requested_w if gpu.held.found_w is None else gpu.held.found_w
        lowest_w = floor_w(facts, settings)
        if wish.cap_w < lowest_w:
            yield _never(
                f"{wish.cap_w:g} W for {gpu.gpu_uuid} is below its floor of {lowest_w:g} W "
                f"(cap_floor_share {settings.cap_floor_share:g} of {facts.default_w:g} W, and at "
                f"least {facts.min_w:g} W)"
            )
        elif wish.lease_s is not None and wish.cap_w > found_w + SAME_W:
            yield _never(
                f"{wish.cap_w:g} W for {gpu.gpu_uuid} is above the {found_w:g} W that were found; "
                "limits are only ever lowered"
            )
    if wish.clock_mhz is not None:
        yield from _clock_value(wish, wish.clock_mhz, facts, settings)


def floor_w(facts: GpuFacts, settings: ActuatorSettings) -> float:
    """Return the lowest cap that may be set on a board."""
    return max(settings.cap_floor_share * facts.default_w, facts.min_w)


def _clock_value(
    wish: Wish, clock_mhz: int, facts: GpuFacts, settings: ActuatorSettings
) -> Iterator[Refusal]:
    name = wish.gpu_uuid
    low, high = facts.lowest_mhz, facts.highest_mhz
    if low is None or high is None:
        yield _never(f"{name} does not say which clocks it has: none is locked")
    elif not low <= clock_mhz <= high:
        yield _never(f"{clock_mhz} MHz for {name} is not within its {low} to {high} MHz")
    elif wish.lease_s is not None and clock_mhz > (settings.baseline_lock_mhz or high):
        yield _never(
            f"{clock_mhz} MHz for {name} is above actuator.baseline_lock_mhz "
            f"{settings.baseline_lock_mhz}; clocks are only ever lowered"
        )


def _never(sentence: str) -> Refusal:
    """Refuse a wish that waiting cannot make valid."""
    return Refusal(sentence=sentence, then=RefusalEffect.STEP_BACK)


def _strangers(wish: Wish, gpu: Gpu, claim: ProcessClaim | None) -> Iterator[Refusal]:
    """Processes on the GPU that are not the holder's."""
    if gpu.facts is None:
        return
    processes = gpu.facts.processes
    if processes is None:
        yield Refusal(
            sentence=f"{gpu.gpu_uuid} does not say which processes use it", then=RefusalEffect.KEEP
        )
        return
    for each in processes:
        if claim is not None and not claim.owns(each.pid, each.uid):
            yield Refusal(
                sentence=f"process {each.pid} (uid {each.uid}) on {gpu.gpu_uuid} is not of "
                f"{wish.holder}: its GPUs are given back",
                then=RefusalEffect.BACK_AT_ONCE,
            )


def _absent(wishes: Sequence[tuple[Wish, Gpu]], claim: ProcessClaim | None) -> Iterator[Refusal]:
    """Refuse a holder without a known claim or without a live process."""
    holder = wishes[0][0].holder
    if claim is None:
        yield Refusal(
            sentence=f"nobody says whose processes {holder}'s are: nothing is set for it",
            then=RefusalEffect.BACK_AT_ONCE,
        )
        return
    # A lost GPU tells nothing and has no processes: the others decide.
    seen = [gpu.facts.processes for _, gpu in wishes if gpu.facts is not None]
    if seen and not any(seen) and None not in seen:
        yield Refusal(
            sentence=f"{holder} has no live compute process on its GPUs: they are given back",
            then=RefusalEffect.BACK_AT_ONCE,
        )


def known_board(name: str, more: Sequence[str]) -> bool:
    """Tell whether a board of this name may be set. `more`: names from the settings."""
    if name.casefold() in {each.casefold() for each in more}:
        return True
    words = name.upper().replace("-", " ").replace("_", " ").split()
    return not KNOWN_BOARDS.isdisjoint(words)


def claims_of(claims: Mapping[str, ProcessClaim], holder: str) -> ProcessClaim | None:
    """Return a holder's claim; one without users counts as none."""
    claim = claims.get(holder)
    return claim if claim is not None and claim.uids else None
