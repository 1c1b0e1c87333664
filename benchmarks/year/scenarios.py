"""Scenarios that a simulated site lives through: its runs, and what goes wrong when.

Each scenario names its borders and faults; the same faults are switched on at the grid server and
told to the independent sum. Invariant: a scenario is data; two lives of one are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from benchmarks.year.daemon import SCALE, Site
from benchmarks.year.oracle import ProviderFaults
from benchmarks.year.run import HOUR, TOKENS_PER_S, A, B, Job
from benchmarks.year.world import at
from wattmesh.controller.replay.world import Noise
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.reconfig.layout import Layout

DAY = timedelta(days=1)
GPUS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5")
Span = tuple[datetime, datetime]
FIRST_FAILS = Noise(switch_failure=0.5, seed=3)
"""Of two switches the first fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario.

    Attributes:
        silent: no GPU answers. `down`: the daemon is stopped, and started again.
        dead: the accounting provider answers 500.
        wrong_zone: it answers for another zone.
        never, neither: it never tells these hours; the stand-in does not tell the second ones.
        raised: these hours are told 20 % higher from `raised_at` on.
        unread: a GPU has no agent meanwhile, and its counter begins anew. `never_read`: GPUs that
            nobody ever reads.
        drift: from then on working GPUs draw so many thousandths of what they did.
    """

    site: Site
    start: datetime
    end: datetime
    step: timedelta
    jobs: Sequence[Job]
    silent: Sequence[Span] = ()
    down: Sequence[Span] = ()
    dead: Sequence[Span] = ()
    wrong_zone: Sequence[Span] = ()
    never: Sequence[Span] = ()
    neither: Sequence[Span] = ()
    raised: Sequence[Span] = ()
    raised_at: Sequence[datetime] = field(default=())
    unread: Sequence[tuple[str, datetime, datetime]] = ()
    never_read: Sequence[str] = ()
    drift: tuple[datetime, int] | None = None

    @property
    def whole(self) -> Span:
        """From its beginning to its end."""
        return self.start, self.end

    def provider_faults(self) -> ProviderFaults:
        """Give what the independent sum must know."""
        return ProviderFaults(
            zone=self.site.zone,
            scale=SCALE,
            never=self.never,
            neither=self.neither,
            raised=self.raised,
            lifecycle_from=self.site.lifecycle_from,
        )

    def switch_on(self, server: GridServer) -> None:
        """Switch every fault on at the server."""
        maps, other = "electricity_maps", "http_json"
        for span in self.dead:
            server.fail(Fault.SERVER_ERROR, provider=maps, during=span)
        for span in self.wrong_zone:
            server.fail(Fault.WRONG_ZONE, provider=maps, during=span)
        for span in self.never:
            server.fail(Fault.GAP, provider=maps, about=span)
        for span in self.neither:
            server.fail(Fault.GAP, provider=other, about=span)
        for span, since in zip(self.raised, self.raised_at, strict=True):
            server.fail(Fault.REVISED, provider=maps, about=span, during=(since, None))


def _job(
    name: str,
    start: datetime,
    hours: float,
    *,
    layout: Layout = A,
    gpus: tuple[str, ...] = GPUS[:2],
    away: Span | None = None,
    slack: float = 1.4,
    movable: bool = False,
    asked: Mapping[int, str] | None = None,
    noise: Noise | None = None,
) -> Job:
    """Make a run that trains for so many hours, if it is not moved.

    Its deadline is `slack` times as far away. `asked`: what an operator asks for, by hours after
    its start.
    """
    wishes = ((start + hour * HOUR, point) for hour, point in (asked or {}).items())
    return Job(
        name=name,
        gpus=gpus,
        start=start,
        deadline=start + slack * hours * HOUR,
        tokens_total=round(hours * 3600) * TOKENS_PER_S[layout],
        layout=layout,
        away=away,
        movable=movable,
        asked=tuple(wishes),
        noise=noise or Noise(),
    )


def month_end() -> Scenario:
    """A month ends in India (18:30 UTC) amid a failover, an outage, a gap and a revision."""
    return Scenario(
        site=Site(poll=3 * HOUR, price=4 * HOUR, forecast=24 * HOUR),
        start=at("2026-02-24 00:00:00"),
        end=at("2026-03-05 00:00:00"),
        step=timedelta(hours=3, seconds=7),
        jobs=(
            _job(
                "steady",
                at("2026-02-24 06:00:00"),
                120,
                away=(at("2026-02-26 01:30:00"), at("2026-02-26 04:10:00")),
            ),
            _job("lean", at("2026-02-24 12:10:03"), 90, layout=B, gpus=GPUS[2:4]),
        ),
        silent=((at("2026-02-25 20:00:00"), at("2026-02-25 23:00:00")),),
        down=((at("2026-02-28 17:50:00"), at("2026-02-28 19:20:00")),),
        dead=((at("2026-02-25 10:00:00"), at("2026-02-25 18:00:00")),),
        wrong_zone=((at("2026-02-27 02:00:00"), at("2026-02-27 06:00:00")),),
        never=((at("2026-02-28 14:00:00"), at("2026-02-28 22:00:00")),),
        neither=((at("2026-02-28 16:00:00"), at("2026-02-28 20:00:00")),),
        raised=((at("2026-02-26 03:00:00"), at("2026-02-26 09:00:00")),),
        raised_at=(at("2026-03-01 00:00:00"),),
    )


def clocks_change() -> Scenario:
    """Clocks change in Berlin and a month ends while the provider is away for more than 72 h.

    One run is moved while an agent is gone for a day; another has a GPU that nobody ever reads.
    GPUs draw less than they did from the second day on, and the accounting signal is changed.
    """
    start = at("2026-03-26 00:00:00")
    moved, half = start + 30 * HOUR, start + 31 * HOUR
    return Scenario(
        site=Site(
            zone="DE",
            timezone="Europe/Berlin",
            poll=3 * HOUR,
            price=6 * HOUR,
            forecast=12 * HOUR,
            lifecycle_from=start + 26 * HOUR,
        ),
        start=start,
        end=at("2026-04-05 00:00:00"),
        step=timedelta(hours=4, seconds=11),
        jobs=(
            _job("spring", at("2026-03-26 03:00:00"), 170, layout=B),
            _job("moved", moved, 80, gpus=GPUS[2:4], movable=True, slack=1.15),
            _job(
                "half",
                half,
                60,
                gpus=GPUS[4:],
                movable=True,
                asked={11: "B", 14: "B"},
                noise=FIRST_FAILS,
            ),
        ),
        dead=((at("2026-03-27 22:00:00"), at("2026-04-01 20:00:00")),),
        unread=((GPUS[2], moved + 20 * HOUR, moved + 44 * HOUR),),
        never_read=GPUS[5:],
        drift=(start + 24 * HOUR, 800),
    )


def whole_year() -> Scenario:
    """A year in India: each month has its runs, and something that goes wrong."""
    months = [datetime.fromisoformat(f"2026-{month:02}-01T00:00+00:00") for month in range(1, 13)]
    jobs: list[Job] = []
    for number, first in enumerate(months):
        away = (first + 9 * DAY + 5 * HOUR, first + 9 * DAY + 8 * HOUR) if number % 3 == 0 else None
        jobs.append(_job(f"long-{number + 1}", first + 2 * DAY, 480, away=away))
        start = first + 5 * DAY + timedelta(hours=7, minutes=13, seconds=5)
        jobs.append(_job(f"lean-{number + 1}", start, 300, layout=B, gpus=GPUS[2:4]))
        start = first + 19 * DAY
        names, asked = (f"moved-{number + 1}", f"half-{number + 1}"), {42: "B", 64: "A"}
        some_fail = Noise(switch_failure=0.25, salt=names[0])
        jobs += [
            _job(names[0], start, 130, gpus=GPUS[2:4], movable=True, slack=1.15, noise=some_fail),
            _job(names[1], start, 100, gpus=GPUS[4:], movable=True, asked=asked),
        ]

    def each(every: int, day: float, hours: float, first: int = 0) -> tuple[Span, ...]:
        starts = [month + timedelta(days=day) for month in months[first::every]]
        return tuple((start, start + timedelta(hours=hours)) for start in starts)

    raised = each(4, 11, 12)
    gone = (*((GPUS[0], *span) for span in each(2, 10.6, 24)), *_gone(each(2, 21.1, 24)))
    return Scenario(
        site=Site(
            poll=6 * HOUR,
            price=6 * HOUR,
            forecast=24 * HOUR,
            lifecycle_from=at("2026-09-15 09:00:00"),
        ),
        start=at("2026-01-01 00:00:00"),
        end=at("2027-01-05 00:00:00"),
        step=timedelta(hours=6, seconds=13),
        jobs=tuple(jobs),
        silent=each(2, 13.25, 4),
        down=each(3, 18.5, 5),
        dead=(*each(1, 7.5, 20), *each(6, 16, 110, first=3)),
        wrong_zone=each(3, 21, 9, first=1),
        never=(*each(2, 25, 46, first=1), *each(5, 29.5, 30)),
        neither=each(4, 25.5, 7, first=1),
        raised=raised,
        raised_at=tuple(end + 36 * HOUR for _, end in raised),
        unread=gone,
        never_read=GPUS[5:],
        drift=(at("2026-06-01 00:00:00"), 800),
    )


def _gone(spans: Sequence[Span]) -> tuple[tuple[str, datetime, datetime], ...]:
    """Let one GPU of the runs that are moved have no agent meanwhile."""
    return tuple((GPUS[2], start, end) for start, end in spans)
