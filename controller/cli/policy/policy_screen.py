"""The screen of `wattmesh policy bench`: a table per trace, then what needs a look. Pure.

Invariant: a saving names its baseline and that it is replayed; ours stands beside the best of the
rivals that know as much, and below the bound; a missed deadline is red, and never only a number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import BAD, DIM, GOOD, STRONG, styled, trouble
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.replay.bench import MPC, ORACLE, ReplayRequest, Row
from wattmesh.controller.replay.world import Noise
from wattmesh.policies.rivals import RULES

EFFICIENT = "static-efficient"
WORTH_A_SHARE = 0.02
"""Where the oracle adds less than this to `static-efficient`, no share of it is shown."""

NAMED = 3
"""How many missed deadlines of a policy are named."""

BEST, LATE = "*", "!"

Cells = Sequence[str | Text]


def screen(rows: Sequence[Row], asked: ReplayRequest) -> list[Text | str]:
    """Lay out the rows."""
    starts = formats.plural(asked.count, "start")
    lines: list[Text | str] = [
        styled(
            (asked.catalogue.job, STRONG),
            f" · unused GPUs {asked.catalogue.release} · forecast {asked.forecast} · "
            f"{starts} a trace",
        ),
        "replayed, not measured: % saved against static-fastest, mean over the starts",
        *_noise(asked.noise),
    ]
    for trace in dict.fromkeys(row.trace for row in rows):
        lines += ["", *_Trace(name=trace, rows=[row for row in rows if row.trace == trace]).lines()]
    policies, tightest = {row.policy for row in rows}, min(row.slack for row in rows)
    return [
        *lines,
        "",
        *(styled((each, DIM)) for each in _legend(policies, tightest)),
        *_missed_deadlines(rows),
    ]


def _noise(noise: Noise) -> Iterator[str]:
    """Name the random faults of the replay, and the policies that are spared."""
    told = []
    if noise.throughput:
        told.append(f"up to {formats.percent(noise.throughput)} of speed lost")
    if noise.switch_failure:
        told.append(f"{formats.percent(noise.switch_failure)} of switches fail")
    if told:
        yield f"noise: {', '.join(told)}; none in oracle or bound"


def _legend(policies: set[str], slack: float) -> Iterator[str]:
    times = "exactly" if slack == 1 else f"{slack:g} times"
    yield f"{slack:g}x: the deadline is at {times} what the fastest point needs"
    if len(policies & set(RULES)) > 1:
        yield f"{BEST} best of the published rules"
    if {EFFICIENT, MPC, ORACLE} <= policies:
        yield f"% of what the oracle adds: to {EFFICIENT}, where that is 2 points or more"
    yield "bounds and oracle know the whole grid ahead, without dwell, guard or boundaries"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    name: str
    rows: Sequence[Row]

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, as they were asked for."""
        return tuple(dict.fromkeys(row.policy for row in self.rows))

    @property
    def slacks(self) -> tuple[float, ...]:
        """The slacks, ascending."""
        return tuple(sorted({row.slack for row in self.rows}))

    def cell(self, policy: str, slack: float) -> list[Row]:
        """Give the rows of one policy and slack, a start each."""
        return [row for row in self.rows if (row.policy, row.slack) == (policy, slack)]

    def saving(self, policy: str, slack: float) -> float:
        """Give the mean saving over the starts."""
        return fmean(row.saving for row in self.cell(policy, slack))

    def best(self, slack: float) -> str:
        """Name the best rule that others use; "" where fewer than two were replayed."""
        rivals = [each for each in self.policies if each in RULES]
        if len(rivals) < 2:
            return ""
        return max(rivals, key=lambda policy: self.saving(policy, slack))

    def lines(self) -> list[Text]:
        """Lay out the table."""
        columns = [
            Column(title=self.name),
            *(Column(title=f"{slack:g}x ", right=True) for slack in self.slacks),
            Column(title="SWITCHES/DAY", right=True),
            Column(title="S/PLAN", right=True),
        ]
        lines: list[Cells] = [self._policy_row(policy) for policy in self.policies]
        lines.append(self._percent_row("bound", self._mean_bound))
        lines.append(self._percent_row("bound, free switches", self._mean_ideal))
        if MPC in self.policies:
            lines += self._ours()
        return table(columns, lines)

    def _policy_row(self, policy: str) -> Cells:
        ours = [row for row in self.rows if row.policy == policy]
        days = sum(row.finished_h for row in ours) / 24.0
        style = STRONG if policy == MPC else ""
        return [
            Text(policy, style=style),
            *(self._saved(policy, slack, style) for slack in self.slacks),
            f"{sum(row.switches for row in ours) / days:.1f}",
            f"{fmean(row.solve_s for row in ours):.2g}",
        ]

    def _saved(self, policy: str, slack: float, style: str) -> Text:
        """Write a mean saving, marked if it is the best rival's, or if a deadline was missed."""
        amount = f"{100 * self.saving(policy, slack):.1f}"
        if not all(row.deadline_met for row in self.cell(policy, slack)):
            return Text(amount + LATE, style=BAD)
        return Text(amount + (BEST if policy == self.best(slack) else " "), style=style)

    def _percent_row(
        self, title: str, of: Callable[[float], float | None], digits: int = 1
    ) -> Cells:
        told = [of(slack) for slack in self.slacks]
        shown = [
            quantities.UNKNOWN if each is None else f"{100 * each:.{digits}f}" for each in told
        ]
        return [Text(title, style=DIM), *(Text(f"{each} ", style=DIM) for each in shown), "", ""]

    def _mean_bound(self, slack: float) -> float:
        return fmean(row.bound_saving for row in self.rows if row.slack == slack)

    def _mean_ideal(self, slack: float) -> float:
        return fmean(row.ideal_saving for row in self.rows if row.slack == slack)

    def _ours(self) -> Iterator[Cells]:
        """Compare ours with the best rival, the oracle and the bound; say what was lost to what."""
        if any(map(self.best, self.slacks)):
            yield [
                Text("mpc over the best *"),
                *map(self._ahead_of_best_rival, self.slacks),
                "",
                "",
            ]
        yield self._percent_row("% of the oracle's saving", self._share, 0)
        if {EFFICIENT, ORACLE} <= set(self.policies):
            yield self._percent_row("% of what the oracle adds", self._added, 0)
        if any(row.regret_planning is not None for row in self.rows):
            yield self._percent_row("lost to the forecast", lambda slack: self._losses(slack)[0])
            yield self._percent_row("lost to planning", lambda slack: self._losses(slack)[1])

    def _ahead_of_best_rival(self, slack: float) -> Text:
        lead = round(100 * (self.saving(MPC, slack) - self.saving(self.best(slack), slack)), 1)
        return Text(f"{lead:+.1f} " if lead else "0.0 ", style=GOOD if lead > 0 else "")

    def _share(self, slack: float) -> float | None:
        """Give the share of what the oracle saves; None where it saves nothing."""
        told = [row.share_of_oracle for row in self.cell(MPC, slack)]
        known = [each for each in told if each is not None]
        return fmean(known) if known else None

    def _added(self, slack: float) -> float | None:
        """Give ours as a share of what the oracle adds to the best single point."""
        shares = []
        cells = zip(*(self.cell(each, slack) for each in (EFFICIENT, MPC, ORACLE)), strict=True)
        for still, ours, best in cells:
            if best.saving - still.saving >= WORTH_A_SHARE:
                shares.append((ours.saving - still.saving) / (best.saving - still.saving))
        return fmean(shares) if shares else None

    def _losses(self, slack: float) -> tuple[float, float]:
        rows = self.cell(MPC, slack)
        return (
            fmean(row.regret_forecast or 0.0 for row in rows),
            fmean(row.regret_planning or 0.0 for row in rows),
        )


def _missed_deadlines(rows: Sequence[Row]) -> Iterator[Text]:
    late = [row for row in rows if not row.deadline_met]
    for policy in dict.fromkeys(row.policy for row in late):
        theirs = [row for row in late if row.policy == policy]
        where = [f"{row.trace} {row.slack:g}x from {row.start:%Y-%m-%d}" for row in theirs]
        told = ", ".join(where[:NAMED]) + (", ..." if where[NAMED:] else "")
        count = sum(row.policy == policy for row in rows)
        yield from trouble(
            [f"{policy} missed the deadline in {len(theirs)} of {count} runs: {told}"]
        )
