"""How a job changes shape without changing its mathematics.

Shared with the daemon, torch-free:
    layout      degrees of parallelism; which ranks take part
    catalogue, catalogue_file    a job's operating points with their evidence
    switch      the durable state machine of one switch
    wire        what a run and the daemon say to each other
    itinerary   layouts that a run is walked through, one order at a time

What a script touches that is only measured, torch-free:
    observed                     observe: the two-line entry
    launched, own_gpus, rank_gpus    its rank and job; its GPUs; those of the other ranks

What a training script touches:
    session     attach, report, boundary, done
    closing     how both are let go of
    reached     how far a run ever trained, for experiment trackers
    state       the handle that build fills and teardown empties

Inside a rank (in the order in which a launch meets them):
    board       what ranks tell each other through the launch's store
    peers, watchdog, deadlines   phases with deadlines; ending what hangs
    chair       global rank 0's office: claim, introduction, first generation
    attempt, folder, start       identity and fence; names on disk; where to begin
    generation, member           who trains in which layout; one rank's walk through them
    proof, held                  every rank holds what it should; who holds what was torn down
    group       the process group of one generation
    boundary    the sequence at a save step: agree, checkpoint, switch
    orders, orderbook            whether an order may be taken; what survives a crash
    checkpoint, tensors, plain, damage       saving, naming, plain values, finding what changed
    facts, shares   what is said beside tensors; what each data parallel rank has of its own
    streams     the script's random streams, left alone, saved and moved
    foreign, own_saves   checkpoints that the job's own checkpointer writes, indexed by us
    dcp (dcp_writer, dcp_reader, dcp_parts, dcp_files, dcp_merge), memory
                the universal checkpoint behind torch's distributed checkpoint
    universal   the format itself, without torch
    digest, boxes                one number for a distributed state, equal in every layout
    agreement   do all ranks stand at the same place after a rebuild?
    noise, reordered   how far may a probe be off; the same probe summed in other orders
    caches      forgetting the meshes of a layout that is gone
    launcher    what a rank and its launcher say to each other
    job, switch_line   what a session stands on; the telling of a switch, and its line in the log
    reporter, courier, outbox, link          who speaks to the daemon, without making training wait
    heartbeat, launch_phase, pace            that the launch lives, at what, and how fast it trains
    first_steps                              when a run is at its pace after a switch
    attach_check   orders and ears inside a run that `wattmesh attach-check` has started
"""
