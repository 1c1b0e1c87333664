"""What a parallel layout costs before it has run: time, memory and energy of a step. Pure.

The map:
    residuals/        what the physics of a step leaves over, learned
    collectives.py    bytes that a rank sends, and seconds they take
    energy.py         joules: watts by phase, times how long
    fit.py            fits parameters to measured steps
    hardware.py       GPUs: rates, memory, links, watts
    measured.py       measured runs, and the cost model that they make
    memory.py         the peak of the fullest rank
    model_shape.py    the sizes of a transformer
    parameters.py     what is fitted, with priors
    predict.py        the physics, corrected by measured runs nearby, with intervals
    presets.py        shapes of known models
    row_fields.py     fields of a row of text as numbers
    setups.py         configurations as columns
    step_time.py      seconds of a step and its phases
    training_rows.py  rows of text as columns, and why some cannot be predicted
"""
