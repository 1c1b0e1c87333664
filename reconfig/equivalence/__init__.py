"""Checks that a job trains the same model however it is switched: V1 to V8, as a library.

docs/convergence.md explains each check. Every check returns a `Verdict`, and none reads data that
the checked code wrote about itself. Torch-free, except for the last four files.

    verdict.py      the result of one check, and the class that a point's results prove
    checks/         V3 to V8: samples, masks, choices, ragged batches, runs over seeds
    whole.py        an unsharded state as arrays; V1 bitwise, V2 and V7 to rounding
    sample.py       a bounded sample of a state's elements, the same in every launch
    shelf.py        an unsharded state on disk, to compare across launches
    own_job.py      the limits and the class of a point, from the job's own noise
    asked.py        what a validated launch watches, and the files in which it answers
    script.py       a schedule of switches, passed to a real session as orders
    pieces.py       puts the pieces of a sharded tensor together
    gather.py       (torch) gathers the state of a distributed job, without our checkpoint code
    watch.py        (torch) records dropout masks by sample
    witness.py      (torch) watches a real job from inside while it is validated
    lab.py          (torch) trains through a script and compares the state around each switch
"""
