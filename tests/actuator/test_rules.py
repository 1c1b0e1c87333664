"""What is written next: refusals in sentences, steps, both kinds of lease, and never too far."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actuator.worlds import CLAIMS, NOW, RUN, SETTINGS, UID, decide, duty, facts, gpu, thrift
from wattmesh.telemetry.actuator.rules.facts import (
    Cause,
    GpuFacts,
    GpuProcess,
    GpuWatch,
    GpuWrite,
    Reasons,
)
from wattmesh.telemetry.actuator.rules.refusals import Gpu, known_board
from wattmesh.telemetry.actuator.settings import ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Wish

QUICK = replace(SETTINGS, write_every_s=0.0, step_share=1.0)


def only(acts: tuple[GpuWrite, ...]) -> GpuWrite:
    """Give the one act there is."""
    assert len(acts) == 1, acts
    return acts[0]


def test_a_clock_goes_down_in_steps_of_the_boards_range() -> None:
    """A tenth of 210..1980 MHz at a time, the last step exactly to the wish."""
    first = only(decide(gpu(facts()), thrift(clock=1200)).acts)
    assert (first.cause, first.clock_mhz, first.group) == (Cause.ECONOMY, 1803, RUN)
    last = only(decide(gpu(facts(), lock_mhz=1300), thrift(clock=1200)).acts)
    assert last.clock_mhz == 1200
    assert not decide(gpu(facts(), lock_mhz=1200), thrift(clock=1200)).acts


def test_an_obligation_goes_down_at_once() -> None:
    """An operator's cap knows neither steps nor pauses."""
    recent = replace(gpu(facts()), watch=GpuWatch(wrote_s=NOW.boot_s))
    act = only(decide(recent, duty(cap=400)).acts)
    assert (act.cause, act.cap_w, act.found_w, act.group) == (Cause.OBLIGATION, 400, 700, "")


def test_economy_waits_between_writes() -> None:
    """Within write_every_s of the last write nothing is lowered to save grams."""
    recent = replace(gpu(facts()), watch=GpuWatch(wrote_s=NOW.boot_s - 59))
    assert not decide(recent, thrift(clock=1200)).acts
    assert decide(recent, thrift(clock=1200), now_s=NOW.boot_s + 1).acts


def test_where_both_hold_the_lower_counts() -> None:
    """An obligation of 450 W and a wish of 500 W make 450 W; when it ends, 500 W."""
    both = (duty(cap=450), thrift(cap=500))
    assert only(decide(gpu(facts()), *both, settings=QUICK).acts).cap_w == 450
    capped = gpu(facts(requested_w=450.0), found_w=700.0, set_w=450.0)
    assert not decide(capped, *both, settings=QUICK).acts
    freed = only(decide(capped, thrift(cap=500), settings=QUICK).acts)
    assert (freed.cause, freed.cap_w, freed.found_w) == (Cause.RESTORE, 500, 700)


def test_what_nobody_wishes_goes_back_in_steps_under_load_and_at_once_without() -> None:
    """A thousand GPUs do not jump in one second; one without work has no power to jump."""
    capped = gpu(facts(requested_w=400.0), found_w=700.0, set_w=400.0)
    assert only(decide(capped).acts).cap_w == 450
    idle = replace(capped, facts=facts(requested_w=400.0, processes=()))
    back = only(decide(idle).acts)
    assert (back.cap_w, back.found_w) == (700, None)
    assert only(decide(capped, at_once=True).acts).cap_w == 700


def test_a_cap_returns_to_the_value_found_not_to_the_default() -> None:
    """An administrator's 500 W on a 700 W board is what a GPU goes back to."""
    found = gpu(facts(requested_w=500.0, processes=()))
    act = only(decide(found, duty(cap=400)).acts)
    assert act.found_w == 500
    capped = gpu(facts(requested_w=400.0, processes=()), found_w=500.0, set_w=400.0)
    assert only(decide(capped).acts).cap_w == 500


def test_clocks_return_to_the_baseline_lock() -> None:
    """Where the operator names one, it is locked again; else the lock is taken away."""
    idle = gpu(facts(processes=()), lock_mhz=1200)
    assert only(decide(idle).acts).clock_mhz is None
    named = replace(SETTINGS, baseline_lock_mhz=1500)
    back = only(decide(idle, settings=named).acts)
    assert back.clock_mhz == 1500
    assert back.after(idle.held, baseline_lock_mhz=1500).nothing


REFUSED: list[tuple[str, GpuFacts | None, Wish, str]] = [
    ("persistence", facts(persistence=False), thrift(clock=1200), "persistence mode of GPU-0"),
    ("persistence unknown", facts(persistence=None), thrift(clock=1200), "persistence mode"),
    ("heat", facts(reasons=int(Reasons.HW_THERMAL)), thrift(clock=1200), "hw thermal"),
    ("slowdown", facts(reasons=int(Reasons.HW_SLOWDOWN)), thrift(clock=1200), "hw slowdown"),
    ("brake", facts(reasons=int(Reasons.HW_POWER_BRAKE)), thrift(clock=1200), "power brake"),
    ("reasons unknown", facts(reasons=None), thrift(clock=1200), "does not say why"),
    ("profile", facts(profile=True), thrift(clock=1200), "workload power profile"),
    ("profile unknown", facts(profile=None), thrift(clock=1200), "does not say whether a workload"),
    ("mig", facts(shared="mig"), thrift(clock=1200), "is shared (mig)"),
    ("vgpu", facts(shared="vgpu"), thrift(clock=1200), "is shared (vgpu)"),
    ("board", facts(board="NVIDIA T4"), thrift(clock=1200), "which wattmesh was not tried on"),
    ("floor", facts(), thrift(cap=300), "below its floor of 350 W"),
    ("above", facts(requested_w=500.0), thrift(cap=600), "above the 500 W that were found"),
    ("clock too low", facts(), thrift(clock=100), "not within its 210 to 1980 MHz"),
    ("clock too high", facts(), thrift(clock=3000), "not within its 210 to 1980 MHz"),
    ("clocks unknown", facts(highest_mhz=None), thrift(clock=1200), "which clocks it has"),
    ("lost", None, thrift(clock=1200), "GPU-0 does not answer"),
    ("processes unknown", facts(processes=None), thrift(clock=1200), "which processes use it"),
    (
        "another user",
        facts(processes=(GpuProcess(pid=42, uid=UID), GpuProcess(pid=7, uid=1001))),
        thrift(clock=1200),
        "process 7 (uid 1001) on GPU-0 is not of run-1",
    ),
    ("nobody there", facts(processes=()), thrift(clock=1200), "no live compute process"),
    ("no claim", facts(), thrift(clock=1200, holder="run-2"), "nobody says whose processes"),
]


@pytest.mark.parametrize(
    ("seen", "wish", "words"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_every_refusal_is_a_sentence_and_no_act(
    seen: GpuFacts | None, wish: Wish, words: str
) -> None:
    """A wish that cannot be obeyed writes nothing and says why, whatever else would be possible."""
    decision = decide(gpu(seen), wish, settings=QUICK)
    assert not decision.acts
    assert words in decision.troubles["GPU-0"]


def test_a_healthy_gpu_is_not_refused() -> None:
    """Sabotaged twin of the refusals: the GPU that they spoil is obeyed."""
    decision = decide(gpu(facts()), thrift(clock=1200), settings=QUICK)
    assert only(decision.acts).clock_mhz == 1200
    assert not decision.troubles
    assert decision.settable == {"GPU-0"}


def test_a_refusal_for_one_gpu_is_a_refusal_for_its_whole_holder() -> None:
    """No run is left with one slow GPU that all others wait for, or the other way round."""
    healthy, hot = facts("GPU-0"), facts("GPU-1", reasons=int(Reasons.SW_THERMAL))
    gpus = {each.gpu_uuid: gpu(each) for each in (healthy, hot)}
    wishes = (thrift("GPU-0", clock=1200), thrift("GPU-1", clock=1200))
    decision = decide(gpus, *wishes, settings=QUICK)
    assert not decision.acts
    assert decision.troubles["GPU-0"] == decision.troubles["GPU-1"]
    assert decision.settable == {"GPU-0"}


def test_gpus_of_one_holder_wait_for_the_one_that_was_written_last() -> None:
    """They move together, so the rate limit of one is that of all."""
    late = replace(gpu(facts("GPU-1")), watch=GpuWatch(wrote_s=NOW.boot_s - 1))
    gpus = {"GPU-0": gpu(facts("GPU-0")), "GPU-1": late}
    wishes = (thrift("GPU-0", clock=1200), thrift("GPU-1", clock=1200))
    assert not decide(gpus, *wishes).acts
    assert len(decide(gpus, *wishes, now_s=NOW.boot_s + 60).acts) == 2


def test_an_obligation_binds_the_gpus_that_can_keep_it() -> None:
    """A cap that one lost GPU cannot keep is not lifted from the others."""
    gpus = {"GPU-0": gpu(facts("GPU-0")), "GPU-1": gpu(None, uuid="GPU-1")}
    decision = decide(gpus, duty("GPU-0", cap=400), duty("GPU-1", cap=400))
    assert only(decision.acts).gpu_uuid == "GPU-0"
    assert "does not answer" in decision.troubles["GPU-1"]
    assert "GPU-0" not in decision.troubles


def test_heat_and_strangers_do_not_stop_an_obligation() -> None:
    """Lowering a hot GPU helps it, and an operator may cap what anybody runs on."""
    seen = facts(reasons=int(Reasons.HW_THERMAL), processes=(GpuProcess(pid=7, uid=4242),))
    assert only(decide(gpu(seen), duty(cap=400), claims={}).acts).cap_w == 400


def test_a_lost_gpu_keeps_nobody_alive() -> None:
    """The run's processes are gone from every GPU that answers: they are given back."""
    gone = facts("GPU-0", processes=(), sm_mhz=1200)
    gpus = {"GPU-0": gpu(gone, lock_mhz=1200), "GPU-1": gpu(None, uuid="GPU-1", lock_mhz=1200)}
    wishes = (thrift("GPU-0", clock=1200), thrift("GPU-1", clock=1200))
    assert only(decide(gpus, *wishes).acts).gpu_uuid == "GPU-0"
    both = {each: gpu(None, uuid=each, lock_mhz=1200) for each in gpus}
    assert not decide(both, *wishes).acts


def test_a_stranger_on_one_gpu_gives_back_all_of_the_holders() -> None:
    """Another user's process appears: the whole run's GPUs go back at once."""
    stranger = (GpuProcess(pid=42, uid=UID), GpuProcess(pid=7, uid=1001))
    gpus = {
        "GPU-0": gpu(facts("GPU-0", sm_mhz=1200), lock_mhz=1200),
        "GPU-1": gpu(facts("GPU-1", sm_mhz=1200, processes=stranger), lock_mhz=1200),
    }
    wishes = (thrift("GPU-0", clock=1200), thrift("GPU-1", clock=1200))
    acts = decide(gpus, *wishes).acts
    assert [(each.gpu_uuid, each.cause, each.clock_mhz) for each in acts] == [
        ("GPU-0", Cause.RESTORE, None),
        ("GPU-1", Cause.RESTORE, None),
    ]


def test_heat_under_a_lease_changes_nothing() -> None:
    """Neither lower, because it is not the moment, nor higher, because it would get hotter."""
    hot = gpu(facts(reasons=int(Reasons.HW_THERMAL), sm_mhz=1500), lock_mhz=1500)
    assert not decide(hot, thrift(clock=1200), settings=QUICK).acts
    assert only(decide(hot, thrift(clock=1600), settings=QUICK).acts).clock_mhz == 1600


def test_hands_off_means_not_even_giving_back_while_the_wish_lasts() -> None:
    """Someone else's lock may be in force; ours is taken back when nobody wishes it any more."""
    foreign = replace(
        gpu(facts(sm_mhz=600, requested_w=500.0), lock_mhz=1200, found_w=700.0, set_w=500.0),
        watch=GpuWatch(blocked="someone", hands_off=True),
    )
    cap = only(decide(foreign, thrift(clock=1200, cap=500)).acts)
    assert (cap.clock, cap.cap_w) == (False, 700)  # the limit is surely ours
    both = decide(foreign, at_once=True).acts
    assert [(each.clock_mhz, each.cap_w) for each in both] == [(None, None), (None, 700)]


def test_a_claim_names_the_user_and_may_name_the_processes() -> None:
    """A pid that another user has by now is not the holder's; a claim without a user is none."""
    wish = thrift(clock=1200)
    for claim, obeyed in (
        (ProcessClaim(uids=frozenset({UID}), pids=frozenset({42})), True),
        (ProcessClaim(uids=frozenset({UID})), True),
        (ProcessClaim(uids=frozenset({UID}), pids=frozenset({43})), False),
        (ProcessClaim(uids=frozenset({UID + 1}), pids=frozenset({42})), False),
        (ProcessClaim(pids=frozenset({42})), False),
        (ProcessClaim(), False),
    ):
        assert bool(decide(gpu(facts()), wish, claims={RUN: claim}).acts) is obeyed


def test_board_names_are_whole_words() -> None:
    """An H100 is known whatever stands around it; an H1000 is not."""
    assert known_board("NVIDIA H100 80GB HBM3", ())
    assert known_board("Tesla V100-SXM2-16GB", ())
    assert known_board("NVIDIA GB200", ())
    assert not known_board("NVIDIA H1000", ())
    assert known_board("My Board", ("my board",))


cases = st.builds(
    lambda processes, requested, found, cap, lock, reasons: (
        processes,
        requested,
        found,
        cap,
        lock,
        reasons,
    ),
    st.sampled_from([(), (GpuProcess(pid=42, uid=UID),), None]),
    st.floats(350, 700),
    st.one_of(st.none(), st.floats(350, 700)),
    st.floats(350, 700),
    st.one_of(st.none(), st.integers(210, 1980)),
    st.sampled_from([0, int(Reasons.GPU_IDLE), int(Reasons.SW_THERMAL), None]),
)
economy_wishes = st.builds(
    lambda clock, cap: thrift(clock=clock, cap=cap),
    st.integers(1, 4000),
    st.one_of(st.none(), st.floats(1, 1000)),
)
obligation_wishes = st.builds(
    lambda clock, cap: duty(clock=clock, cap=cap),
    st.one_of(st.none(), st.integers(1, 4000)),
    st.floats(1, 1000),
)


def settle(start: Gpu, wishes: tuple[Wish, ...], settings: ActuatorSettings) -> tuple[Gpu, int]:
    """Obey every decision until there is none, as a perfect board would; count the writes."""
    now, writes = start, 0
    for beat in range(400):
        now_s = NOW.boot_s + 60.0 * beat
        decision = decide(now, *wishes, settings=settings, now_s=now_s)
        if not decision.acts:
            return now, writes
        for act in decision.acts:
            writes += 1
            check_one(act, now, settings)
            held = act.after(now.held, baseline_lock_mhz=settings.baseline_lock_mhz)
            seen = now.facts
            assert seen is not None
            if act.cap and act.cap_w is not None:
                seen = replace(seen, requested_w=act.cap_w)
            now = replace(now, held=held, facts=seen, watch=GpuWatch(wrote_s=now_s))
    raise AssertionError(f"never settles: {now}, {wishes}")


def check_one(act: GpuWrite, before: Gpu, settings: ActuatorSettings) -> None:
    """Hold one act to the laws that have no exception."""
    seen = before.facts
    assert seen is not None
    found_w = seen.requested_w if before.held.found_w is None else before.held.found_w
    if act.cap and act.cap_w is not None:
        assert act.cap_w <= found_w + 1e-3
        if act.cap_w < seen.requested_w:
            assert act.cap_w >= settings.cap_floor_share * seen.default_w - 1e-3
    if act.clock and act.clock_mhz is not None:
        assert act.clock_mhz <= (settings.baseline_lock_mhz or 1980)
        assert act.clock_mhz >= 210


def oracle(start: Gpu, wishes: tuple[Wish, ...]) -> tuple[float, float]:
    """Say where one GPU must end, from the words of the rules alone: (clock, cap)."""
    seen, held = start.facts, start.held
    assert seen is not None
    found = seen.requested_w if held.found_w is None else held.found_w
    now_clock, now_cap = float(held.lock_mhz or 1980), seen.requested_w
    clock, cap = 1980.0, found
    for wish in wishes:
        economy = wish.lease_s is not None
        wrong = wish.cap_w is not None and (
            wish.cap_w < 350 or (economy and wish.cap_w > found + 0.5)
        )
        wrong |= wish.clock_mhz is not None and not 210 <= wish.clock_mhz <= 1980
        gone = economy and seen.processes == ()
        keep = economy and (
            seen.processes is None or seen.reasons in (None, int(Reasons.SW_THERMAL))
        )
        if economy and (wrong or gone):
            continue
        kept = keep or wrong
        if wish.clock_mhz is not None:
            clock = min(clock, max(wish.clock_mhz, now_clock) if kept else wish.clock_mhz)
        if wish.cap_w is not None:
            cap = min(cap, max(wish.cap_w, now_cap) if kept else wish.cap_w)
    return clock, cap


@given(
    case=cases,
    economy=st.one_of(st.none(), economy_wishes),
    obligation=st.one_of(st.none(), obligation_wishes),
    step=st.floats(0.05, 1),
)
def test_every_beat_obeys_the_laws_and_the_last_one_is_where_the_oracle_says(
    case: tuple[object, ...], economy: Wish | None, obligation: Wish | None, step: float
) -> None:
    """Whatever is wished, it settles, never above what was found nor below a floor, and stays."""
    processes, requested, found, cap, lock, reasons = case
    held: dict[str, Any] = {"lock_mhz": lock}
    if isinstance(found, float) and isinstance(cap, float) and cap < found:
        held |= {"found_w": found, "set_w": cap}
        requested = cap
    start = gpu(facts(processes=processes, requested_w=requested, reasons=reasons), **held)
    wishes = tuple(each for each in (economy, obligation) if each is not None)
    end, _ = settle(start, wishes, replace(SETTINGS, step_share=step))
    clock, limit = oracle(start, wishes)
    assert (end.held.lock_mhz or 1980) == pytest.approx(clock, abs=0.51)
    assert end.facts is not None
    assert end.facts.requested_w == pytest.approx(limit, abs=2e-3)
    assert (end.held.found_w is None) or end.held.set_w == pytest.approx(limit, abs=2e-3)


@given(start=st.integers(210, 1979), step=st.floats(0.02, 1))
def test_no_single_economy_write_or_step_up_exceeds_the_share(start: int, step: float) -> None:
    """The step limit holds in both directions, on the clock and on the cap."""
    settings = replace(SETTINGS, step_share=step)
    down = decide(gpu(facts()), thrift(clock=start, cap=350), settings=settings).acts
    for act in down:
        assert act.clock_mhz is None or 1980 - act.clock_mhz <= step * 1770 + 1
        assert act.cap_w is None or 700 - act.cap_w <= step * 500 + 1e-3
    up = decide(gpu(facts(), lock_mhz=start), settings=settings, claims=CLAIMS).acts
    assert (only(up).clock_mhz or 1980) - start <= step * 1770 + 1
