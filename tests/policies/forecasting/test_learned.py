"""What is learned from a series: causal, never much worse than the profile, with honest spread."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.policies.forecasting.worlds import Zone, values
from wattmesh.policies.forecast.anchored import anchored_profile
from wattmesh.policies.forecast.learned import GROUPS, LEAN, SHARES, Learned, chosen, learn
from wattmesh.policies.forecast.lookback import DAY, REACH, Array, Lookback, look_back

LEADS = np.arange(1, REACH + 1)
See = Callable[[Array], Lookback]


def reads_ahead(see: See, origin: int = 30 * DAY) -> list[str]:
    """Name what changes of an origin's features when only later values change."""
    told = np.array(values(Zone(), 40))
    changed = told.copy()
    changed[origin:] = 1e4
    at = np.array([origin])
    before, after, alone = see(told), see(changed), see(told[:origin])
    looks: dict[str, Callable[[Lookback], Array]] = {
        "profile": lambda back: back.anchored(at, LEADS),
        "features": lambda back: back.features(at, LEADS),
        "shape": lambda back: back.shape(at),
    }
    return [
        name
        for name, look in looks.items()
        if not np.allclose(look(before), look(after)) or not np.allclose(look(before), look(alone))
    ]


def test_no_feature_reads_what_comes_later() -> None:
    """Whatever happens after an origin, its features are the same; as if the series ended there."""
    assert reads_ahead(lambda told: look_back(told, 0)) == []


def _late(rows: Array, hours: int) -> Array:
    """Give every hour what belongs to a later one."""
    return np.concatenate([rows[hours:], np.repeat(rows[-1:], hours)])


@pytest.mark.parametrize("leak", ["week", "habit", "sums"])
def test_a_leak_is_caught(leak: str) -> None:
    """Sabotaged twin: one mean that is taken an hour, or a week, too late is named."""

    def leaking(told: Array) -> Lookback:
        back = look_back(told, 0)
        return Lookback(
            clock=0,
            values=back.values,
            sums=_late(back.sums, 1 if leak == "sums" else 0),
            week=_late(back.week, DAY if leak == "week" else 0),
            long=back.long,
            habit=_late(back.habit, 5 * DAY if leak == "habit" else 0),
        )

    assert reads_ahead(leaking)


def test_the_profile_here_is_the_profile_there() -> None:
    """The array form of the anchored profile equals the plain one."""
    told = values(Zone(), 20)
    back = look_back(np.array(told), 0)
    expected = anchored_profile(told, steps=REACH)
    assert back.anchored(np.array([len(told)]), LEADS)[0] == pytest.approx(expected)


def test_features_of_a_steady_grid_are_nothing() -> None:
    """Without any change there is nothing to correct by."""
    back = look_back(np.full(30 * DAY, 250.0), 0)
    origins = np.array([20 * DAY, 30 * DAY])
    assert np.abs(back.features(origins, LEADS)).max() < 1e-9


def test_groups_cover_each_lead_once() -> None:
    """Every lead has the coefficients of exactly one group."""
    assert np.concatenate(GROUPS).tolist() == LEADS.tolist()


def run(zone: Zone, days: int = 60, seed: int = 1) -> tuple[Array, Array, Array, Array, Array]:
    """Forecast every 17 hours in the last weeks: truth, profile, ours, low, high."""
    told = values(zone, days, seed)
    learned: Learned | None = None
    rows: list[tuple[list[float], ...]] = []
    for number, now in enumerate(range((days - 24) * DAY, len(told) - REACH, 17)):
        if number % 9 == 0:
            learned = learn(told[:now], 0)
        assert learned is not None
        profile = anchored_profile(told[:now], steps=REACH)
        assert profile is not None
        rows.append((told[now : now + REACH], list(profile), *learned.expect(told[:now], 0)))
    truth, profile_rows, ours, low, high = (np.array(column) for column in zip(*rows, strict=True))
    return truth, profile_rows, ours, low, high


def gain(truth: Array, profile: Array, ours: Array) -> float:
    """By what share our mean error of the first day is below the profile's."""
    first = slice(0, DAY)
    theirs = np.abs(profile - truth)[:, first].mean()
    return float(1 - np.abs(ours - truth)[:, first].mean() / theirs)


def test_weekends_and_a_long_memory_are_learned() -> None:
    """Where weekends differ and weather lasts for days, the correction is worth having."""
    truth, profile, ours, _, _ = run(Zone(weekend=80.0, memory_h=60.0, weather=25.0))
    assert gain(truth, profile, ours) > 0.1


@pytest.mark.parametrize(
    "zone",
    [
        Zone(weekend=0.0, memory_h=12.0),
        Zone(weekend=0.0, memory_h=0.5, weather=40.0),
        Zone(regime=150.0, regime_days=11),
        Zone(level=20.0, daily=10.0, weather=15.0),
    ],
)
def test_it_never_costs_much(zone: Zone) -> None:
    """Five weeks are little, and may mislead where there is nothing to learn: 5 % at the worst."""
    truth, profile, ours, _, _ = run(zone)
    assert gain(truth, profile, ours) > -0.05


def test_four_hours_in_five_lie_between_the_quantiles() -> None:
    """Over several worlds, about 80 % of what comes lies between the 10 % and 90 % quantiles."""
    inside = []
    for seed in (1, 2):
        truth, _, _, low, high = run(Zone(), seed=seed)
        inside.append(float(((truth >= low) & (truth <= high)).mean()))
    assert 0.72 < sum(inside) / len(inside) < 0.88


def test_the_hour_of_the_clock_does_not_matter_when_told_right() -> None:
    """A longer history at expecting than at learning moves no hour of the day."""
    told = values(Zone(), 70)
    whole = learn(told, 0)
    cut = learn(told[DAY // 2 :], DAY // 2)
    assert whole is not None
    assert cut is not None
    assert cut.expect(told, 0)[0] == pytest.approx(cut.expect(told[DAY // 2 :], DAY // 2)[0])


def test_too_little_teaches_nothing() -> None:
    """Three weeks are the least, and they must be known."""
    assert learn(values(Zone(), 20), 0) is None
    assert learn([math.nan] * 60 * DAY, 0) is None


@pytest.mark.parametrize(("lost", "share"), [(0.0, 1.0), (0.4 * LEAN, 1.0), (0.6 * LEAN, 0.0)])
def test_the_whole_correction_is_applied_unless_it_loses_enough(lost: float, share: float) -> None:
    """Left-out weeks are harder than the hours to come; two losses are added for each group."""
    loss = np.outer(1.0 + lost * SHARES, np.ones(REACH))
    assert np.all(chosen(loss) == share)
