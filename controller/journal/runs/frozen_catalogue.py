"""A catalogue as the journal keeps it: frozen with the run, as JSON text."""

import functools
import json
from dataclasses import asdict
from datetime import datetime
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
    SwitchSpend,
)
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout, without_usual


def to_stored(catalogue: Catalogue) -> str:
    """Write a catalogue as JSON text."""
    values = asdict(catalogue, dict_factory=without_usual)
    for point, each in zip(catalogue.points, values["points"], strict=True):
        at = point.validated_at
        each["validated_at"] = at.isoformat() if at is not None else None
    if not catalogue.switch.spends:
        # As earlier versions wrote it, so that the text of a catalogue without them stays the same.
        del values["switch"]["spends"]
    return to_text(values)


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
    """Read what switches cost; pairs and spends came with later versions than the rest."""
    pairs = tuple(PairCost(**each) for each in data.pop("pairs", ()))
    spends = tuple(SwitchSpend(**each) for each in data.pop("spends", ()))
    return SwitchCost(pairs=pairs, spends=spends, **data)


def _point(data: dict[str, Any]) -> OperatingPoint:
    """Read one operating point; its proof came with a later version than the rest."""
    probe, fingerprint = data.pop("probe", None), data.pop("fingerprint", None)
    at = data.pop("validated_at", None)
    layout = Layout.from_dict(data.pop("layout"))
    equivalence = Equivalence(data.pop("equivalence"))
    evidence = Evidence(data.pop("evidence"))
    return OperatingPoint(
        layout=layout,
        equivalence=equivalence,
        evidence=evidence,
        probe=ProbeEvidence(**probe) if probe else None,
        fingerprint=Fingerprint(**fingerprint) if fingerprint is not None else None,
        validated_at=datetime.fromisoformat(at) if at else None,
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
