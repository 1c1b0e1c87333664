"""Decodes a Prometheus answer about GPUs: exporters' names and units, ages, blanks. Pure.

Invariant: a value keeps the time it was scraped at, not the time of the query; a blank, NaN or
negative value is no value.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattmesh.errors import SourceUnavailable

INT64_BLANK = 0x7FFF_FFFF_FFFF_FFF0
FP64_BLANK = 2.0**47
"""DCGM's "no value" (dcgm_structs.h: DCGM_INT64_BLANK, DCGM_FP64_BLANK, and the three values after
each); older exporters pass them on."""

HIGHEST_POWER_W = 100_000.0
OTHERWISE_EVERY_S = 15.0
"""Scrape interval of a series with a single sample."""

LIVE_PERIODS, LEAST_LIVE_S = 2.5, 30.0
"""A series is live for so many of its scrape intervals, and at least for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """The metrics of one exporter.

    Attributes:
        energy, power: names of its series.
        mj_per_unit: millijoules per unit of `energy`; power is in watts.
        uuid_labels: labels that hold the device's UUID; the first one present counts.
        matchers: further labels, so that each device has one series.
    """

    energy: str
    power: str
    mj_per_unit: float
    uuid_labels: tuple[str, ...]
    matchers: Mapping[str, str] = field(default_factory=dict)


EXPORTERS: Mapping[str, Exporter] = {
    # Its host label was called Hostname until May 2026; the UUID is enough.
    "dcgm": Exporter(
        energy="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        power="DCGM_FI_DEV_POWER_USAGE",
        mj_per_unit=1.0,
        uuid_labels=("UUID", "uuid"),
    ),
    "kepler": Exporter(
        energy="kepler_node_gpu_joules_total",
        power="kepler_node_gpu_watts",
        mj_per_unit=1000.0,
        uuid_labels=("gpu_uuid",),
    ),
    "wattmesh": Exporter(
        energy="wattmesh_gpu_energy_joules_total",
        power="wattmesh_gpu_power_watts",
        mj_per_unit=1000.0,
        uuid_labels=("gpu_uuid",),
        matchers={"window": "instant"},
    ),
}
"""zeusd is missing because up to 0.5 it serves JSON that Prometheus cannot scrape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedSample:
    """The newest sample of one device.

    Attributes:
        at_s: when it was scraped, in seconds since 1970 by the server's clock.
        every_s: the scrape interval.
        shared: "mig" for the series of a MIG instance, whose values are the whole board's.
    """

    gpu_uuid: str
    at_s: float
    energy_mj: int | None
    power_w: float | None
    every_s: float
    shared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One series of the answer: samples in time order, without blanks."""

    labels: Mapping[str, str]
    times_s: tuple[float, ...]
    newest: float

    @property
    def every_s(self) -> float:
        """The shortest time between two samples."""
        gaps = [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False) if b > a]
        return min(gaps, default=OTHERWISE_EVERY_S)

    def live(self, now_s: float) -> bool:
        """Tell whether its newest sample is recent enough."""
        oldest_s = max(LEAST_LIVE_S, LIVE_PERIODS * self.every_s)
        return now_s - self.times_s[-1] <= oldest_s


def query(exporter: Exporter, selector: str, window_s: int) -> str:
    """Build a query for both series as a range vector, because only raw samples have times."""
    said = [f'__name__=~"{exporter.energy}|{exporter.power}"']
    if selector.strip(" ,"):
        said.append(selector.strip(" ,"))
    return f"{{{','.join(said)}}}[{window_s}s]"


def newest(answer: object, exporter: Exporter, now_s: float) -> list[ScrapedSample]:
    """Decode the answer to `query`.

    Args:
        answer: the JSON body.
        exporter: the exporter of the series.
        now_s: the moment of the query, seconds since 1970.

    Returns:
        each device once, by UUID: a board that is scraped twice, or once per MIG instance, has the
        same values each time, so they are never added.

    Raises:
        SourceUnavailable: it is malformed.
    """
    results = _results(answer)
    energies = _by_device(results, exporter, exporter.energy, now_s)
    powers = _by_device(results, exporter, exporter.power, now_s)
    return [
        _joined(uuid, energies.get(uuid), powers.get(uuid), exporter)
        for uuid in sorted({*energies, *powers})
    ]


def _joined(
    uuid: str, energy: _Series | None, power: _Series | None, exporter: Exporter
) -> ScrapedSample:
    """Join a device's two series at the time of the energy sample, else of the power."""
    main = energy or power
    if main is None:
        raise ValueError(f"{uuid} has no series")
    near = power is not None and abs(power.times_s[-1] - main.times_s[-1]) <= main.every_s
    labels = main.labels
    return ScrapedSample(
        gpu_uuid=uuid,
        at_s=main.times_s[-1],
        energy_mj=None if energy is None else round(energy.newest * exporter.mj_per_unit),
        power_w=power.newest if power is not None and near else None,
        every_s=main.every_s,
        shared="mig" if labels.get("GPU_I_ID") else "",
    )


def _by_device(
    results: Iterable[tuple[Mapping[str, str], list[Any]]],
    exporter: Exporter,
    name: str,
    now_s: float,
) -> dict[str, _Series]:
    """Each device's live series of one name; of several, always the same one."""
    found: dict[str, _Series] = {}
    chosen: dict[str, list[tuple[str, str]]] = {}
    for labels, samples in results:
        uuid = next((labels[each] for each in exporter.uuid_labels if labels.get(each)), "")
        if labels.get("__name__") != name or not uuid:
            continue
        if any(labels.get(key, value) != value for key, value in exporter.matchers.items()):
            continue
        series = _series(labels, samples, energy=name == exporter.energy)
        if series is None or not series.live(now_s):
            continue
        order = sorted(labels.items())
        if uuid not in found or order < chosen[uuid]:
            found[uuid], chosen[uuid] = series, order
    return found


def _series(labels: Mapping[str, str], samples: Iterable[Any], *, energy: bool) -> _Series | None:
    """Drop blanks; None when no sample is left."""
    kept = []
    for at, text in samples:
        value = float(text)
        if _is_figure(value) and (energy or value <= HIGHEST_POWER_W):
            kept.append((float(at), value))
    if not kept:
        return None
    return _Series(labels=labels, times_s=tuple(at for at, _ in kept), newest=kept[-1][1])


def _is_figure(value: float) -> bool:
    """Tell a value from a blank, NaN or a negative number."""
    if not math.isfinite(value) or value < 0 or value >= INT64_BLANK:
        return False
    return not FP64_BLANK <= value <= FP64_BLANK + 3


def _results(answer: object) -> list[tuple[dict[str, str], list[Any]]]:
    """(labels, samples) of every series.

    Raises:
        SourceUnavailable: it is not the answer to a range vector query.
    """
    try:
        if not isinstance(answer, dict) or answer.get("status") != "success":
            raise ValueError(_said(answer))
        data = answer["data"]
        if data["resultType"] != "matrix":
            raise ValueError(f"a {data['resultType']} came instead of a matrix")
        results = []
        for each in data["result"]:
            labels = {str(key): str(value) for key, value in each["metric"].items()}
            results.append((labels, [(float(at), str(text)) for at, text in each["values"]]))
            _ = [float(text) for _, text in results[-1][1]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceUnavailable(
            f"Prometheus gave an answer that is not understood: {error!s}"[:300]
        ) from None
    return results


def _said(answer: object) -> str:
    if isinstance(answer, dict) and answer.get("error"):
        return str(answer["error"])
    return "no answer to a query"
