"""Commands about plans, and about policies on recorded grids.

The map:
    plan.py            `wattmesh policy plan`
    plan_bands.py      the range of intensities that each point of a plan is for
    plan_chart.py      draws a plan in characters
    plan_picture.py    draws a plan as a picture
    plan_screen.py     the screen of `wattmesh policy plan`
    policy.py          `wattmesh policy bench`
    policy_options.py  the options of `wattmesh policy bench`, read and checked
    policy_screen.py   the screen of `wattmesh policy bench`
    stream_screen.py   the screen of `wattmesh policy bench --jobs`
"""
