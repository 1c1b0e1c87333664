"""Problems that the tests and the benchmark of the planner share, all deterministic."""

from math import pi, sin

from hypothesis import strategies as st

from wattmesh.policies.planner.problem import Option, OptionTransition, PlanningProblem, Sla

HOUR = 3600.0
GPUS = 256
IDLE_W = 220.0

# A 70B model on 256 GPUs or fewer, at several clocks: assumed speeds and watts.
POINTS = (
    ("A", "L4", 231_700.0, 222_700.0, 256),
    ("B", "L4", 220_200.0, 186_900.0, 256),
    ("C", "L4", 197_100.0, 158_700.0, 256),
    ("D", "L2", 122_900.0, 113_300.0, 128),
    ("E", "L2", 104_300.0, 80_400.0, 128),
    ("F", "L1", 53_400.0, 40_400.0, 64),
)
LAYOUT = OptionTransition(seconds=300.0, energy_j=2.9e7)
CLOCK = OptionTransition(seconds=0.0, energy_j=0.0)


def wave(count: int, seconds: float = HOUR, *, swing: float = 70.0) -> tuple[float, ...]:
    """A grid that is clean by day, dirty by night, and a little different every day and week."""
    hours = [n * seconds / HOUR for n in range(count)]
    return tuple(
        190.0 - swing * sin((h % 24 - 6) / 12 * pi) + swing / 3 * sin(h / 84 * pi) + 7 * sin(h * h)
        for h in hours
    )


def options(*, held: bool = False, pause: bool = True, embodied: float = 0.0) -> tuple[Option, ...]:
    """The points as options; held GPUs draw their idle power, released ones nothing."""
    found = [
        Option(
            name=name,
            layout=layout,
            tokens_per_s=speed,
            power_w=power_w + (IDLE_W * (GPUS - gpus) if held else 0.0),
            gpus=gpus,
            embodied_g_per_s=embodied * gpus,
        )
        for name, layout, speed, power_w, gpus in POINTS
    ]
    idle_w = IDLE_W * GPUS if held else 0.0
    if pause:
        found.append(Option(name="paused", layout="", tokens_per_s=0.0, power_w=idle_w, gpus=0))
    return tuple(found)


def ways(
    between: tuple[Option, ...], layout: OptionTransition = LAYOUT, clock: OptionTransition = CLOCK
) -> tuple[tuple[OptionTransition | None, ...], ...]:
    """Transitions that cost the same between all layouts, and between all clocks."""
    return tuple(
        tuple(
            None if origin is target else clock if origin.layout == target.layout else layout
            for target in between
        )
        for origin in between
    )


def case(
    count: int,
    slack: float,
    *,
    held: bool = False,
    pause: bool = True,
    dwell_s: float = 0.0,
    seconds: float = HOUR,
    grid: tuple[float, ...] = (),
) -> PlanningProblem:
    """A run at A with `slack` times the time that it needs there."""
    found = options(held=held, pause=pause)
    layout = OptionTransition(seconds=LAYOUT.seconds, energy_j=LAYOUT.energy_j, dwell_s=dwell_s)
    return PlanningProblem(
        tokens=found[0].tokens_per_s * count * seconds / slack,
        seconds=(seconds,) * count,
        g_per_kwh=grid or wave(count, seconds),
        options=found,
        start=0,
        transitions=ways(found, layout),
    )


@st.composite
def small_problems(draw: st.DrawFn, *, plain: bool = False) -> PlanningProblem:
    """Draw a problem of a few slots and options; a plain one has only what every oracle knows."""
    count = draw(st.integers(2, 6))
    found = tuple(
        Option(
            name=f"p{n}",
            layout=draw(st.sampled_from("XY")),
            tokens_per_s=draw(st.sampled_from([1.0, 2.0, 3.0, 5.0])),
            power_w=draw(st.sampled_from([100.0, 200.0, 400.0, 700.0])),
            gpus=draw(st.integers(1, 4)),
            embodied_g_per_s=0.0 if plain else draw(st.sampled_from([0.0, 0.001])),
        )
        for n in range(draw(st.integers(1, 3)))
    )
    idle_w = draw(st.sampled_from([0.0, 60.0]))
    found += (Option(name="paused", layout="", tokens_per_s=0.0, power_w=idle_w, gpus=0),)
    seconds = tuple(draw(st.sampled_from([60.0, 100.0])) for _ in range(count))
    fastest = max(option.tokens_per_s for option in found)
    rare = st.none() if plain else st.none() | st.booleans()
    slots = st.sampled_from([50.0, 100.0, 300.0, 500.0])
    return PlanningProblem(
        tokens=draw(st.floats(0.1, 1.0)) * fastest * sum(seconds),
        seconds=seconds,
        g_per_kwh=tuple(draw(slots) for _ in range(count)),
        options=found,
        start=draw(st.integers(0, len(found) - 1)),
        transitions=tuple(
            tuple(None if i == j else draw(_ways(plain=plain)) for j in range(len(found)))
            for i in range(len(found))
        ),
        dwell_left_s=0.0 if plain else draw(st.sampled_from([0.0, 0.0, 100.0])),
        power_cap_w=(
            tuple(draw(st.sampled_from([250.0, 700.0])) for _ in range(count)) if draw(rare) else ()
        ),
        sla=Sla(window_s=120.0, tokens_per_s=1.0) if draw(rare) else None,
    )


def _ways(*, plain: bool) -> st.SearchStrategy[OptionTransition]:
    """Draw what a transition takes; in a plain problem it is over within its slot."""
    seconds = st.sampled_from([0.0, 10.0, 30.0] if plain else [0.0, 10.0, 90.0, 150.0])
    dwell_s = st.just(0.0) if plain else st.sampled_from([0.0, 0.0, 90.0, 180.0])
    energy_j = st.sampled_from([0.0, 2e3, 5e4])
    return st.builds(OptionTransition, seconds=seconds, energy_j=energy_j, dwell_s=dwell_s)
