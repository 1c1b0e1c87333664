"""The part of wattmesh inside a rank of a training job: session, boundaries, switches.

The map:
    attach_check/        gives orders to a run that `wattmesh attach-check` started, and reports on
                         it
    background_fsync.py  makes the checkpoint of a switch durable while training goes on in the new
                         layout
    boundary.py          the sequence at a save step: agree, checkpoint, switch
    boundary_vote.py     what all ranks conclude from the facts that they gathered at a save step
                         (pure)
    consumed.py          the samples that the ranks trained on between two save steps
    expert_costs.py      expert-tokens counted and expert costs agreed, for a job that asked
    first_steps.py       when a run is at its pace after a switch
    job.py               what one rank's session rests on
    launch_leader.py     the duties of global rank 0: claim, registration, first generation
    launcher.py          the messages between a rank and its launcher
    observed.py          `observe`: the two-line entry
    own_code.py          what a run computes with, as a fingerprint
    placed.py            the placement of experts: what a build must hold, what an order changes
    profiled.py          what a run does differently while it is profiled or validated
    progress.py          the report of a step
    proof.py             the proof of a generation
    rank_runner.py       one rank's walk through the generations
    reported.py          what a script reports of its step, as numbers that JSON has
    saves.py             one rank's part in the checkpoints of a run
    session.py           `attach`, `report`, `boundary`, `done`
    sleep.py             how a run falls asleep
    start.py             how a launch begins: global rank 0 decides checkpoint and layout, and tells
                         the others
    switch_line.py       the one line that a switch leaves in the training log
"""
