"""One file or small folder per outside system; none knows another.

The map:
    carbon/        providers of grid carbon intensity
    pytorch/       parallelism in five dimensions on PyTorch's own parts, so that every layout
                   trains one model
    deepspeed.py   DeepSpeed ZeRO jobs: switched by restart, loaded into another world size or
                   another stage
    torchrun.py    the launcher: starts a training job and starts it again
    torchtitan.py  torchtitan (0.3): its trainer under a session, by its own extension points
"""
