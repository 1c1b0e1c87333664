"""The daemon's process, for which spans of half a second are long enough to learn from.

python -m tests.experts.live.fast_daemon --config FILE
"""

import sys

from wattmesh.controller.daemon.__main__ import main
from wattmesh.controller.expert_costs import learner
from wattmesh.policies.experts import costs, live_spans


def hurry() -> None:
    """Learn ten times a second, of spans that no real meter could tell apart."""
    vars(learner)["EVERY_S"] = 0.1
    vars(costs)["LEAST_SPAN_S"] = vars(live_spans)["LEAST_SPAN_S"] = 0.5


if __name__ == "__main__":
    hurry()
    sys.exit(main())
