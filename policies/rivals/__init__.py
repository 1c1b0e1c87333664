"""Rules that others use, for `wattmesh policy bench` to hold ours against: one file each.

`rival_inputs.py` is what a rule may see; each rule names its source and is short, but no weaker
than what was published. None of them knows a deadline guard: replay holds one over all of them
alike. `fluid.py` is the problem that two of them solve.

The map:
    carbon_scaler.py     CarbonScaler: more GPUs in clean hours, by marginal throughput per gram
    dvfs_only.py         clocks only: the least-carbon schedule over the clocks of the layout the
                         run began in
    energy_min.py        energy-min mix: the fewest joules for the work in time; ignores carbon
    equal_step.py        equal-step greedy: the least grams for the next so many steps
    fluid.py             the fluid problem that some rules solve
    one_way_trading.py   one-way trading: train at the fastest point while the grid is under a
                         falling threshold
    pause_threshold.py   pause threshold: train at the fastest point while the grid is among the
                         cleanest hours ahead
    rival_inputs.py      what a rival rule may look at, and what it answers
    static_efficient.py  static, efficient: the one point of the fewest joules per token that is in
                         time from the start
    static_fastest.py    static, fastest: the point of the most tokens per second from first to last
    wait_awhile.py       wait awhile: train at the fastest point in the cleanest hours until the
                         deadline
"""

from collections.abc import Mapping

from wattmesh.policies.rivals.carbon_scaler import carbon_scaler
from wattmesh.policies.rivals.dvfs_only import dvfs_only
from wattmesh.policies.rivals.energy_min import energy_min
from wattmesh.policies.rivals.equal_step import equal_step
from wattmesh.policies.rivals.one_way_trading import one_way_trading
from wattmesh.policies.rivals.pause_threshold import pause_threshold
from wattmesh.policies.rivals.rival_inputs import RivalRule
from wattmesh.policies.rivals.static_efficient import static_efficient
from wattmesh.policies.rivals.static_fastest import static_fastest
from wattmesh.policies.rivals.wait_awhile import wait_awhile

RULES: Mapping[str, RivalRule] = {
    "static-fastest": static_fastest,
    "static-efficient": static_efficient,
    "dvfs-only": dvfs_only,
    "energy-min": energy_min,
    "pause-threshold": pause_threshold,
    "wait-awhile": wait_awhile,
    "carbonscaler": carbon_scaler,
    "one-way-trading": one_way_trading,
    "equal-step": equal_step,
}
