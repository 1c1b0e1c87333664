"""Whether a job trains the same model however it is switched: the checks V1 to V11, as a library.

What each check stands on is in docs/convergence.md. Every check gives a `Verdict`; none reads
what the code it judges wrote about itself. Torch-free but for the last three files.

    verdict.py      one check's finding, and the class that a point's findings amount to
    whole.py        a whole logical state as arrays; V1 bitwise, V2 and V7 to rounding
    samples.py      V3 which samples a step consumed
    masks.py        V4 dropout masks, V6 expert choices: things that belong to a sample
    ragged.py       V5 losses over ragged masks, whatever the microbatch
    trials.py       V8 final losses over seeds: equivalence by two one-sided tests
    bias.py         V9 to V11 routing that leans towards cheap experts
    batch_rules.py  what else must change when the global batch does (off by default)
    shelf.py        a whole state on disk, to be compared with another run's
    script.py       a schedule of switches, given to a real session as orders
    pieces.py       pieces of a sharded tensor, put together by undoing its cuts
    gather.py       (torch) the whole state of a distributed job, without our checkpoint code
    watch.py        (torch) records what modules draw: dropout masks, by sample
    lab.py          (torch) trains through a script and compares before with after
"""
