"""What the cycle would see of a replayed run: the world's state as one `Observation`. Pure.

Invariant: it contains nothing that a daemon could not know at that moment; the grid ahead comes
from the forecast alone, and only the running interval is as recorded.
"""

from dataclasses import replace

from wattmesh.controller.cycle.clocks import BACK_S
from wattmesh.controller.replay.world import RunState, Scene
from wattmesh.policies.decision import (
    RESIZES,
    SUSPENDS,
    CarbonView,
    IntensitySlot,
    Mode,
    Observation,
    PolicySettings,
    Rung,
    RunView,
    SwitchView,
)

DAY_S = 86_400.0
CAPABILITIES = ("in_place", "parking", SUSPENDS)


def observation(
    scene: Scene,
    state: RunState,
    slots: tuple[IntensitySlot, ...],
    *,
    policy: PolicySettings,
    cycle_s: float,
    pause: bool = True,
    trained: tuple[tuple[float, int], ...] = (),
) -> Observation:
    """Give what the policy sees of the run.

    Args:
        scene: the run, its grid and its noise.
        state: where the run is.
        slots: the running interval and the forecast.
        policy: limits on switching.
        cycle_s: seconds between two cycles.
        pause: whether the run can be suspended.
        trained: (seconds ago, tokens by then) over the window of the service level.
    """
    return Observation(
        now=scene.moment(state.at_s),
        mode=Mode.ACT,
        runs=(_run_view(scene, state, pause, trained),),
        carbon=CarbonView(
            signal=scene.grid.name,
            slots=slots,
            age_s=0.0,
            trouble=scene.noise.signal(state.at_s),
            rung=Rung.ISSUED,
            source="replay",
            interval_s=scene.grid.step.total_seconds(),
        ),
        policy=policy,
        cycle_s=cycle_s,
        clock_lag_s=BACK_S,
    )


def _run_view(
    scene: Scene, state: RunState, pause: bool, trained: tuple[tuple[float, int], ...]
) -> RunView:
    catalogue = scene.catalogue
    at_s, steps = state.at_s, catalogue.global_batch * catalogue.seq_len
    open_switch = None
    if state.target is not None:
        open_switch = SwitchView(
            target=state.target or "sleep",
            state="rebuilding" if state.told_s is not None else "ordered",
            age_s=at_s - state.ordered_s,
        )
    changed_s, clock_s = state.changed_s, state.clock_s
    return RunView(
        run="replay",
        name=catalogue.job,
        attempt=1 if state.out_until_s is None else 2,
        live=state.out_until_s is None or at_s >= state.out_until_s,
        last_seen_s=0.0,
        step=int(state.tokens // steps),
        tokens=int(state.tokens),
        tokens_total=round(scene.tokens),
        layout=state.point.layout,
        world_size=state.point.gpus if scene.resizes else state.gpus,
        gpus_held=state.gpus,
        boundary_every=scene.boundary_every,
        started_at=scene.start,
        catalogue=catalogue,
        current=state.point,
        deadline=scene.deadline,
        tokens_per_s=state.measured,
        switches=tuple(
            replace(each, ago_s=at_s - told_s)
            for each, told_s in zip(state.switches, state.told_at_s, strict=True)
        ),
        speeds=state.watched.speeds,
        frozen=state.frozen,
        open_switch=open_switch,
        failed_switches=state.failed,
        switches_today=sum(at_s - each < DAY_S for each in state.switched_s[-50:]),
        clock_trouble="",
        since_clock_s=None if clock_s is None else at_s - clock_s,
        since_switch_s=None if changed_s is None else at_s - changed_s,
        capabilities=(
            *(CAPABILITIES if pause else CAPABILITIES[:-1]),
            *((RESIZES,) if scene.resizes else ()),
        ),
        suspended_s=at_s - state.asleep_since_s if state.asleep else None,
        outage_share=_outage_share(scene, state),
        trained=trained,
        coverage=(state.point.gpus, state.point.gpus),
    )


def _outage_share(scene: Scene, state: RunState) -> float:
    """Share of its time that it stood still; less than a day counts as one, as in the journal."""
    if scene.loss is None or state.out_until_s is None:
        return 0.0
    return scene.loss.outage_s / max(DAY_S, state.at_s)
