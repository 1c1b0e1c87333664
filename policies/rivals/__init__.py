"""Rules that others use, for `wattmesh policy bench` to hold ours against: one file each.

`look.py` is what a rule may see; each rule names its source and is short, but no weaker than what
was published. None of them knows a deadline guard: replay holds one over all of them alike.
`fluid.py` is the problem that two of them solve.
"""

from collections.abc import Mapping

from wattmesh.policies.rivals.carbon_scaler import carbon_scaler
from wattmesh.policies.rivals.dvfs_only import dvfs_only
from wattmesh.policies.rivals.energy_min import energy_min
from wattmesh.policies.rivals.equal_step import equal_step
from wattmesh.policies.rivals.look import Rule
from wattmesh.policies.rivals.one_way_trading import one_way_trading
from wattmesh.policies.rivals.pause_threshold import pause_threshold
from wattmesh.policies.rivals.static_efficient import static_efficient
from wattmesh.policies.rivals.static_fastest import static_fastest
from wattmesh.policies.rivals.wait_awhile import wait_awhile

RULES: Mapping[str, Rule] = {
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
