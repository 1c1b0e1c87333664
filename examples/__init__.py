"""What uses wattmesh and is no part of it: nothing of the package imports from here.

The map:
    demo/      `wattmesh demo`: a recorded grid day moves a live training job
    fsdp2/     a plain FSDP2 script, with what it takes to measure and move it
    routing/   shows that balancing takes the published energy term of routers back
    pretrain/  a training script that shows how to attach a job; what the demo and the tests train

`catalogues/` and `streams/` hold no code. `wattmesh demo` alone finds this folder, when it is asked
to run (docs/decisions/0045-demo.md).
"""
