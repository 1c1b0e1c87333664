"""What lives in a rank of a training job: the session, its boundaries, its switches.

The map:
    attach_check/        orders and ears inside a run that `wattmesh attach-check` has started
    background_fsync.py  makes the checkpoint of a switch durable while training goes on in the new
                         layout
    boundary.py          the sequence at a save step: agree, checkpoint, switch
    boundary_vote.py     what all ranks of a generation conclude from the facts that they gathered
                         at a save step (pure)
    consumed.py          which samples the ranks trained on between two save steps
    first_steps.py       when a run is at its pace after a switch
    job.py               what one rank's session stands on
    launch_leader.py     global rank 0's office: claim, introduction, first generation
    launcher.py          what a rank and its launcher say to each other
    observed.py          observe: the two-line entry
    proof.py             the proof of a generation
    rank_runner.py       one rank's walk through the generations
    reported.py          what a script says of its step, as numbers that JSON has
    saves.py             one rank's part in the checkpoints of a run
    session.py           attach, report, boundary, done
    start.py             how a launch begins: global rank 0 decides where from and in which layout,
                         others are told
    switch_line.py       the one line that a switch leaves in the training log
"""
