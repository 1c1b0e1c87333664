"""A catalogue as the journal keeps it: frozen with the run, as JSON text."""

import functools
import json
from dataclasses import asdict
from typing import Any

from wattmesh.controller.journal.database.values import to_text
from wattmesh.reconfig.catalogue import (
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    PairCost,
    PowerScope,
    ProbeEvidence,
    Release,
    SwitchCost,
)
from wattmesh.reconfig.layout import Layout


def to_stored(catalogue: Catalogue) -> str:
    """Write a catalogue as JSON text."""
    return to_text(asdict(catalogue))


@functools.lru_cache(maxsize=1024)
def from_text(text: str) -> Catalogue:
    """Read back what `to_stored` wrote; equal texts give the same object, which cannot change."""
    data: dict[str, Any] = json.loads(text)
    points = tuple(_point(each) for each in data.pop("points"))
    switch = _switch(data.pop("switch"))
    release = Release(data.pop("release"))
    # Catalogues frozen by an earlier version have no power scope: the default applied.
    scope = PowerScope(data.pop("power_scope", PowerScope.GPU))
    simulated = tuple(data.pop("simulated"))
    return Catalogue(
        points=points,
        switch=switch,
        release=release,
        simulated=simulated,
        power_scope=scope,
        **data,
    )


def _switch(data: dict[str, Any]) -> SwitchCost:
    """Read what switches cost; pairs came with a later version than the rest."""
    pairs = tuple(PairCost(**each) for each in data.pop("pairs", ()))
    return SwitchCost(pairs=pairs, **data)


def _point(data: dict[str, Any]) -> OperatingPoint:
    """Read one operating point; what the probe did came with a later version than the rest."""
    probe = data.pop("probe", None)
    layout = Layout.from_dict(data.pop("layout"))
    equivalence = Equivalence(data.pop("equivalence"))
    evidence = Evidence(data.pop("evidence"))
    return OperatingPoint(
        layout=layout,
        equivalence=equivalence,
        evidence=evidence,
        probe=ProbeEvidence(**probe) if probe else None,
        **data,
    )


def point_rows(run: str, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Give one row per operating point, for readers that query the database directly."""
    return [
        {
            "run": run,
            "point": point.id,
            "layout": to_text(point.layout.to_dict()),
            "gpus": point.gpus,
            "clock_mhz": point.clock_mhz,
            "tokens_per_s": point.tokens_per_s,
            "power_w": point.power_w,
            "equivalence": str(point.equivalence),
            "evidence": str(point.evidence),
            "sources": to_text(point.sources),
        }
        for point in catalogue.points
    ]
