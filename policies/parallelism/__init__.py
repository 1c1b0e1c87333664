"""What a parallel layout costs before it has run: time, memory and energy of a training step. Pure.

* `model_shape`: the sizes of a transformer, `presets`: those of known models
* `hardware`: GPUs and their links
* `setups`: what is asked about, as columns: one entry a configuration
* `step_time`, `collectives`: seconds of a step; `memory`: bytes of a rank; `energy`: joules
* `parameters`: what is fitted, with its legal ranges
"""
