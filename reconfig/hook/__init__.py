"""The part of wattmesh inside a rank of a training job: session, boundaries, switches.

The map:
    agreed_costs.py      what ranks agreed on of expert costs, and how far a lean has moved by it
    attach_check/        gives orders to a run that `wattmesh attach-check` started, and reports on
                         it
    background_fsync.py  makes the checkpoint of a switch durable while training goes on in the new
                         layout
    boundary.py          the sequence at a save step: agree, checkpoint, carry out an order
    boundary_vote.py     what all ranks conclude from the facts that they gathered at a save step
                         (pure)
    consumed.py          the samples that the ranks trained on between two save steps
    expert_costs.py      expert-tokens counted and expert costs agreed, for a job that asked
    job.py               what one rank's session rests on
    launching/           how a launch begins, and how it falls asleep
    leaving.py           leaves a generation: in place, by restart, to sleep, in another size
    loss_pairs.py        paired probes of a launch, and which of them wait for a daemon (pure)
    observed.py          `observe`: the two-line entry
    placed.py            the placement of experts: what a build must hold, what an order changes
    progress.py          the report of a step
    proof.py             the proof of a generation
    rank_runner.py       one rank's walk through the generations
    reports/             what a rank says of itself: steps, pace, code, switches
    saves.py             one rank's part in the checkpoints of a run
    session.py           `attach`, `report`, `boundary`, `done`
"""
