"""Commands about plans, and about policies on recorded grids.

The map:
    plan.py            `wattmesh policy plan`
    plan_bands.py      which intensities each point of a plan is for
    plan_chart.py      draw a plan in characters
    plan_picture.py    draw a run's plan as a picture
    plan_screen.py     the screen of `wattmesh policy plan`
    policy.py          `wattmesh policy bench`
    policy_options.py  the options of `wattmesh policy bench`, and what their texts mean
    policy_screen.py   the screen of `wattmesh policy bench`
"""
