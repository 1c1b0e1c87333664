"""What each source alone said in a forecast of ours: stored with the issue, scored afterwards.

Invariant: what is read back gives the same scores as what was written; a forecast without parts has
none.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from wattmesh.controller.journal.carbon.forecasts import Forecast
from wattmesh.policies.forecast.predict import PredictedIntensity
from wattmesh.policies.forecast.skill import ForecastSource

MILLI = 1000.0

NAMES = {
    ForecastSource.ISSUED: "the provider's forecast",
    ForecastSource.EXOGENOUS: "our forecast with wind, sun and weather",
    ForecastSource.OWN: "our own forecast",
    ForecastSource.PROFILE: "anchored profile",
    ForecastSource.DAY: "the day before",
    ForecastSource.LAST: "last value",
}


def parts_of(predicted: PredictedIntensity) -> str:
    """Write what every source said, as JSON text."""
    said = {
        source.value: [None if math.isnan(each) else round(each * MILLI) for each in values]
        for source, values in sorted(predicted.each.items())
    }
    known = predicted.known_until
    return json.dumps({"known_until": known.isoformat() if known else None, "said": said})


def model_of(predicted: PredictedIntensity) -> str:
    """Name what a forecast is made of: the shares of its sources over all slots."""
    shares: Counter[ForecastSource] = Counter()
    for each in predicted.made_of:
        shares.update({source: share / len(predicted.made_of) for source, share in each.items()})
    parts = [
        f"{NAMES[source]} {share:.0%}" for source, share in shares.most_common() if share >= 0.005
    ]
    return ", ".join(parts)


def earlier(made: Iterable[Forecast]) -> tuple[PredictedIntensity, ...]:
    """Read predictions back, the first of every hour: one an hour is enough to score."""
    hourly: dict[datetime, PredictedIntensity] = {}
    for each in made:
        told = json.loads(each.parts) if each.parts else {}
        known = told.get("known_until")
        if not known:
            continue
        said = {
            ForecastSource(name): tuple(math.nan if one is None else one / MILLI for one in values)
            for name, values in told["said"].items()
            if name in set(ForecastSource)
        }
        hour = each.fetched_at.replace(minute=0, second=0, microsecond=0)
        hourly.setdefault(
            hour,
            PredictedIntensity(
                slots=each.slots, each=said, known_until=datetime.fromisoformat(known)
            ),
        )
    return tuple(hourly.values())
