"""Kubernetes: a JobSet or TrainJob that trains, and is followed by itself in another size.

The map:
    __main__.py   the commands: run a job's ranks, render one, wake a run, say what is held
    alarm.py      the alarm clock of a run that sleeps: a CronJob
    begin.py      how a job begins, or learns that it may not
    client.py     calls the API server, each call with a limit
    job_kinds.py  JobSets and TrainJobs as objects, and their successors
    job_queue.py  Kubernetes as what holds a run's next launch
    manifests.py  renders the job that a user starts with
    names.py      what Kubernetes takes as a name, an image or a path
    run.py        what a pod of a job does

`base/` has what an administrator installs, for kustomize.
"""
