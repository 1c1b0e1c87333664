"""Whether a run that is switched trains the same model.

The map:
    __main__.py  the comparison, part by part
    controls.py  what the negative controls do to a state
    job_types.py, job_type_controls.py  the same for the job types of the example
    bottleneck_trials.py  narrow dispatch to experts, over seeds
    sent.py      bytes that a rank gives to all-to-alls
    job.py       one rank of the job
    plan.py      layouts, walks, arms and controls (pure)
    run.py       carries arms out in pieces that are kept
"""
