"""How many lives a property draws: a few in CI, as many as are asked for at night.

WATTMESH_EXAMPLES=2000 python -m pytest tests/accounting -n 0 -rP
"""

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("WATTMESH_EXAMPLES", "6"))

_QUIET = settings(
    database=None, print_blob=False, suppress_health_check=list(HealthCheck), deadline=None
)

ENOUGH = EXAMPLES >= 50
"""Of so many lives it is no luck what kinds of them there are."""

many = settings(_QUIET, max_examples=EXAMPLES)
"""A failure is shrunk, which takes minutes."""

seen_first = settings(_QUIET, max_examples=60, phases=[Phase.generate])
"""For sabotaged twins: the first failure will do."""
