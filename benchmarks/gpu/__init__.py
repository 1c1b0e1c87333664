"""What a GPU shows of wattmesh: its sensors, memory, speed per joule, and switches on CUDA.

    make gpu                                       everything; writes measured.json, docs/gpu.md
    python -m benchmarks.gpu --part sensor         one part; the others stay as they were measured
    python -m benchmarks.gpu --short               an eighth of the seconds, to see that all runs

__main__.py    the parts, each a process of its own that ends within eight minutes
chosen.py      what was asked for on the command line
machine.py     the GPU a figure was measured on, read and never set
load.py        a process that keeps the GPU at work, or lets it rest, as it is told
sensor.py      NVML: how fine, how late, how true, and what a look costs
memory.py      copies, the digest and the staging of checkpoints, from device memory
train.py       tokens per joule of the example trainer, by batch and precision
compiled.py    torch.compile: the first step, cold and warm
switch.py      switches in place of one rank; switch_job.py: one rank of the job
switch_more.py switches of ranks that share the GPU, and of a compiled model
marked.py      the tests marked `gpu`
page.py        docs/gpu.md, made from the JSON and nothing else

Invariant: no clock, limit or mode of the GPU is ever set. What was not measured is null.
"""
