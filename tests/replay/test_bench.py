"""Policies over small grids: nobody beats the bound, and nobody is late."""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.builders.replays import CYCLE_S, days, grid, job, means, perfect, scene
from wattmesh.controller.cli.main import main
from wattmesh.controller.cycle.plans import NoPlans
from wattmesh.controller.replay.bench import (
    POLICIES,
    Cell,
    ReplayRequest,
    bench,
    cells,
    replayed,
    rows,
)
from wattmesh.controller.replay.bounds import hindsight
from wattmesh.controller.replay.drivers import LivePolicy, PlansNow, Rival
from wattmesh.controller.replay.forecasts import OwnForecast, PersistenceForecast, ReplayForecast
from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.world import Driver, Loss, Noise, World, run
from wattmesh.policies.decision import IntensitySlot, PolicySettings
from wattmesh.policies.rivals import RULES
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Evidence, Release, SwitchCost

ROOT = Path(__file__).parents[2]
FAILING = Noise(throughput=0.019, switch_failure=0.2, seed=5)
DEAR = SwitchCost(layout_s=300.0, layout_energy_j=500_000.0, reacquire_s=120.0, source="assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverted:
    """A forecast that says the opposite of what will be."""

    grid: GridSeries

    def slots(self, now: datetime, end: datetime) -> tuple[IntensitySlot, ...]:
        """Mirror the truth about 250."""
        told = perfect(self.grid).slots(now, end)
        return (
            told[0],
            *(replace(each, g_per_kwh=max(1.0, 500 - each.g_per_kwh)) for each in told[1:]),
        )


def mpc(forecast: ReplayForecast, **changes: object) -> LivePolicy:
    """Our own decisions."""
    return LivePolicy(means(forecast, **changes), PlansNow())


@pytest.mark.parametrize("slack", [1.1, 1.6, 2.5])
@pytest.mark.parametrize("release", [Release.RELEASED, Release.HELD])
def test_the_bound_is_below_the_oracle_and_the_oracle_below_every_policy(
    slack: float, release: Release
) -> None:
    """Whatever is done with unused GPUs."""
    on = days(6, seed=1)
    setting = scene(on, hours=16, slack=slack, day=2, catalogue=job(release=release))
    known = hindsight(setting, pause=True)
    assert known.ideal_g <= known.bound_g <= known.plan.evaluation.grams * (1 + 1e-9)
    assert known.plan.evaluation.legal
    drivers: dict[str, Driver] = {
        name: Rival(means(perfect(on)), rule) for name, rule in RULES.items()
    }
    drivers |= {"mpc": mpc(perfect(on)), "threshold": LivePolicy(means(perfect(on)), NoPlans())}
    for name, driver in drivers.items():
        state = run(setting, driver, cycle_s=CYCLE_S)
        assert known.bound_g <= state.carbon_g * (1 + 1e-9), name


def test_where_switches_are_free_the_ideal_is_the_bound() -> None:
    """And where they are dear it is still the same: the ideal asks nothing of switches."""
    on = days(6, seed=1)
    free = SwitchCost(layout_s=0.0, layout_energy_j=0.0, reacquire_s=0.0, source="assumed")
    ideals = []
    for switch in (free, DEAR):
        setting = scene(on, hours=16, slack=2, day=2, catalogue=job(switch=switch))
        known = hindsight(setting, pause=True)
        ideals.append(known.ideal_g)
        assert (known.bound_g - known.ideal_g < 1e-5 * known.ideal_g) == (switch is free)
    assert ideals[0] == pytest.approx(ideals[1], rel=1e-5)


def test_a_policy_that_is_too_good_to_be_true_is_caught_by_the_bound() -> None:
    """A world with a cleaner grid than the one the bound was made for is below it."""
    on = days(6, seed=1)
    setting = scene(on, hours=16, slack=2, day=2)
    cheating = replace(setting, grid=grid([each * 0.7 for each in on.values]))
    state = run(cheating, mpc(perfect(on)), cycle_s=CYCLE_S)
    assert state.carbon_g < hindsight(setting, pause=True).bound_g


def test_with_a_perfect_forecast_the_plan_comes_close_to_the_bound() -> None:
    """Closer than any rule that knows as much."""
    on = days(8, seed=2)
    setting = scene(on, hours=30, slack=2, day=1, boundary_every=2)
    bound_g = hindsight(setting, pause=True).bound_g
    ours = run(setting, mpc(perfect(on), cycle_s=300.0), cycle_s=300.0)
    assert ours.carbon_g <= 1.02 * bound_g
    for name, rule in RULES.items():
        theirs = run(setting, Rival(means(perfect(on)), rule), cycle_s=CYCLE_S)
        assert ours.carbon_g <= theirs.carbon_g, name


@pytest.mark.parametrize(
    ("slack", "noise", "kind"),
    [
        *((slack, FAILING, kind) for slack in (1.25, 2.0) for kind in ("inverted", "own")),
        *((1.25, Noise(seed=1), kind) for kind in ("inverted", "persist", "own")),
        (2.0, Noise(), "inverted"),
    ],
)
def test_the_deadline_is_met_whatever_the_forecast_says_and_whatever_fails(
    slack: float, noise: Noise, kind: str
) -> None:
    """Within the guard's reserve for speed, and never two failures in a row."""
    on = days(34, seed=3)
    kinds: dict[str, ReplayForecast] = {
        "inverted": Inverted(grid=on),
        "persist": PersistenceForecast(grid=on),
        "own": OwnForecast(on),
    }
    setting = scene(on, hours=20, slack=slack, day=30, noise=noise, catalogue=job(switch=DEAR))
    state = run(setting, mpc(kinds[kind]), cycle_s=CYCLE_S)
    assert state.at_s <= 20 * slack * 3600 + 1e-3


def test_every_rival_meets_its_deadline_under_the_guard() -> None:
    """Even on a forecast turned upside down."""
    on = days(6, seed=4)
    setting = scene(on, hours=20, slack=1.5, day=2, catalogue=job(switch=DEAR))
    for name, rule in RULES.items():
        state = run(setting, Rival(means(Inverted(grid=on)), rule), cycle_s=CYCLE_S)
        assert state.at_s <= 30 * 3600 + 1e-3, name


def test_a_rival_that_a_loss_makes_late_trains_on_past_its_deadline() -> None:
    """No slot is left to ask a rule about: it ends late, at the fastest point of what is left."""
    on = days(6, seed=4)
    loss = Loss(at_s=3600.0, outage_s=600.0, gpus=2)
    setting = replace(scene(on, hours=10, slack=1.2, day=2), loss=loss)
    for name, rule in RULES.items():
        state = run(setting, Rival(means(perfect(on)), rule), cycle_s=CYCLE_S)
        assert state.at_s > 12 * 3600, name
        assert state.tokens >= setting.tokens * (1 - 1e-9), name


class Reckless:
    """The sabotaged twin: sleeps as long as there is any time at all, and asks no guard."""

    def look(self, world: World) -> None:
        """Sleep, then run."""
        world.order("" if world.state.at_s < 11 * 3600 else "A")


def test_without_the_guard_a_deadline_is_missed() -> None:
    """So that the test above means something."""
    setting = scene(days(6), hours=20, slack=1.5, day=2)
    assert run(setting, Reckless(), cycle_s=CYCLE_S).at_s > 30 * 3600


def test_a_run_that_cannot_be_suspended_never_is() -> None:
    """It goes by its points alone."""
    on = days(6, seed=1)
    setting = scene(on, hours=16, slack=2.5, day=2)
    state = run(setting, mpc(perfect(on), pause=False), cycle_s=CYCLE_S)
    assert not state.asleep
    assert state.at_s <= 40 * 3600


def trace(path: Path, on: GridSeries) -> Path:
    """Write a grid as a trace."""
    rows = ["zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type"]
    rows += [
        f"XX,{slot.start:%Y-%m-%dT%H:%M:%SZ},{slot.g_per_kwh},average,direct" for slot in on.slots
    ]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def asked(**changes: object) -> ReplayRequest:
    """A small bench."""
    facts: dict[str, object] = {
        "catalogue": job(),
        "slacks": (1.5,),
        "count": 2,
        "hours": 6.0,
        "forecast": "persist",
    }
    facts.update(changes)
    return ReplayRequest(**facts)  # type: ignore[arg-type]


def test_rows_are_those_of_every_policy_trace_slack_and_start(tmp_path: Path) -> None:
    """In order, and the same from one process as from two."""
    path = trace(tmp_path / "made-up.csv", days(4))
    wanted, left_out = cells(asked(), [path])
    assert len(wanted) == 2
    assert not left_out
    found = [row for part in bench(asked(), wanted, jobs=1) for row in part]
    assert [(row.policy, row.start) for row in found] == [
        (policy, cell.start) for cell in wanted for policy in POLICIES
    ]
    assert all(row.deadline_met and row.saving <= row.bound_saving + 1e-9 for row in found)
    assert found[0].saving == 0.0
    again = [row for part in bench(asked(), wanted, jobs=2) for row in part]
    assert [replace(row, solve_s=0) for row in again] == [replace(row, solve_s=0) for row in found]


def test_a_trace_that_is_too_short_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    """It says what it holds and what it takes."""
    path = trace(tmp_path / "short.csv", days(1))
    assert cells(asked(), [path])[0] == []
    assert "holds 1.0 days" in cells(asked(), [path])[1][0]


def test_points_that_nobody_validated_are_replayed_all_the_same(tmp_path: Path) -> None:
    """Replay asks what they would be worth."""
    assumed = replace(
        job(), points=tuple(replace(each, evidence=Evidence.ASSUMED) for each in job().points)
    )
    path = trace(tmp_path / "made-up.csv", days(4))
    cell = Cell(trace=path, start=days(4).start + timedelta(days=1))
    found = rows(asked(catalogue=replayed(assumed), policies=("mpc",)), cell)
    assert found[0].clock_changes + found[0].switches > 0


def test_the_command_prints_rows_as_json_and_a_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys are stable."""
    path = trace(tmp_path / "made-up.csv", days(4))
    file = tmp_path / "job.toml"
    catalogue_file.save(job(), file)
    words = ["policy", "bench", "--catalogue", str(file), "--trace", str(path), "--slack", "1.5"]
    words += ["--starts", "1", "--hours", "6", "--forecast", "persist", "--processes", "1"]
    words += ["--policies", "static-efficient,mpc,oracle", "--noise", "throughput=0.01,seed=2"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in found] == ["static-efficient", "mpc", "oracle"]
    assert set(found[0]) >= {
        *("policy", "trace", "slack", "start", "carbon_g", "energy_j", "saving", "bound_saving"),
        *("ideal_saving", "share_of_oracle", "switches", "deadline_met", "solve_s"),
    }
    assert main(words) == 0
    screen = capsys.readouterr().out
    assert "replayed, not measured" in screen
    assert "mpc" in screen


@pytest.mark.parametrize(
    "wrong",
    [
        ["--slack", "0.9"],
        ["--slack", "soon"],
        ["--policies", "mpc,magic"],
        ["--noise", "throughput"],
        ["--noise", "luck=0.1"],
        ["--forecast", "crystal-ball"],
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(
    tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With what there is instead."""
    path = trace(tmp_path / "made-up.csv", days(4))
    file = tmp_path / "job.toml"
    catalogue_file.save(job(), file)
    words = ["policy", "bench", "--catalogue", str(file), "--trace", str(path), "--hours", "6"]
    assert main([*words, *wrong]) != 0
    assert wrong[1] in capsys.readouterr().err


def test_the_wait_for_gpus_given_back_is_reckoned_with() -> None:
    """Two hours until they are the run's again: it is in time all the same."""
    slow = replace(DEAR, reacquire_s=7200.0)
    on = days(6, seed=6)
    setting = scene(on, hours=20, slack=2, day=1, catalogue=job(switch=slow))
    state = run(setting, mpc(Inverted(grid=on)), cycle_s=CYCLE_S)
    assert state.at_s <= 40 * 3600 + 1e-3


def test_the_example_catalogue_is_one_and_says_that_nothing_in_it_was_measured() -> None:
    """Its reference is its fastest point, so that a slack means what it says."""
    found = catalogue_file.load(ROOT / "examples" / "catalogues" / "llama-70b.toml")
    assert {each.evidence for each in found.points} == {Evidence.ASSUMED}
    assert found.reference == max(found.points, key=lambda each: each.tokens_per_s).id
    assert asked(catalogue=found, hours=None).window(1.0) == timedelta(hours=240)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiring(Noise):
    """All the noise there may be, from the fourteenth hour on."""

    def speed(self, at_s: float) -> float:
        """Share of catalogue speed."""
        return 1.0 if at_s < 14 * 3600.0 else 1.0 - self.throughput


class Unaware(ReplayRequest):
    """A sabotaged bench whose guard does not know of the noise."""

    @property
    def limits(self) -> PolicySettings:
        """The settings as they are."""
        return self.settings


@pytest.mark.parametrize(("kind", "met"), [(ReplayRequest, True), (Unaware, False)])
def test_replay_tells_the_guard_how_much_speed_noise_takes(
    kind: type[ReplayRequest], met: bool, tmp_path: Path
) -> None:
    """Every policy is in time under noise, and late if its margin is smaller."""
    path = trace(tmp_path / "made-up.csv", days(6))
    noise = Tiring(throughput=0.25, switch_failure=0.02, seed=4)
    wanted = kind(
        catalogue=job(switch=DEAR),
        slacks=(1.4,),
        count=2,
        hours=20.0,
        noise=noise,
        forecast="persist",
        policies=("energy-min", "mpc"),
    )
    found = [row for cell in cells(wanted, [path])[0] for row in rows(wanted, cell)]
    assert len(found) == 4
    assert all(row.deadline_met for row in found) is met
