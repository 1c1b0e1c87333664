"""Slurm: a batch job that trains, leaves for another size or to sleep, and is followed by itself.

The map:
    __main__.py     the commands: run a job's ranks, wake a run, say what is held
    again.py        another job where this one could start no rank
    answers.py      reads what Slurm's clients print
    begin.py        how a batch job begins, or learns that it may not
    client.py       calls Slurm's clients, each with a limit
    epilog.py       what a node does when a job has ended: clocks are given back
    free.py         says what is free when
    job_step.py     starts the ranks of one launch on all nodes of the job
    node_answers.py reads what they print of nodes and reservations
    own_job.py      which job this is, and how ranks are divided among nodes
    slurm_queue.py  Slurm as what holds a run's next launch
    wake.py         wakes a run that sleeps before its time
    watcher.py      a small job that does so when the daemon orders it
"""
