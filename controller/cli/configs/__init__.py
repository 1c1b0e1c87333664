"""Commands about operating points, and about a script that is to have several.

The map:
    attach_check.py    `wattmesh attach-check`
    configs.py         `wattmesh configs`: list, show, profile
    configs_json.py    the keys of `wattmesh configs list --json` and `configs show --json` (pure)
    configs_screen.py  what a catalogue looks like
    configs_ways.py    what switching between one point and every other takes, and on whose word
                       (pure)
    configs_worth.py   what a catalogue says beyond its points
"""
