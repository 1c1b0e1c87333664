"""An optimizer's state, named as its parameters are.

The map:
    optimizers.py  optimizer state by the global names of parameters
    shards.py      makes tensors with the sharding of others
    slots.py       makes the slots of a new optimizer
"""
