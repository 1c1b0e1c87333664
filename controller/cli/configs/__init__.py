"""Commands about operating points, and `attach-check`.

The map:
    attach_check.py    `wattmesh attach-check`
    configs.py         `wattmesh configs`: list, show, search, predict, profile, ...
    configs_json.py    the JSON of `wattmesh configs` (pure)
    configs_screen.py  the screens of `wattmesh configs`
    configs_stall.py   how long each switch stalls a run, and how that is known (pure)
    configs_state.py   which of predicted, measured, validated and stale each point is (pure)
    configs_switches.py reads the switches of a run from the daemon's answer (pure)
    configs_ways.py    the switches between one point and all others, with their evidence (pure)
    configs_worth.py   when each point of a catalogue is worth running
    profile_json.py    what `configs profile --json` prints
    profile_picture.py draws what a profile measured
    search/            `configs search`, `predict` and `measured`
    validate_screen.py what `configs validate` shows, and its JSON (pure)
"""
