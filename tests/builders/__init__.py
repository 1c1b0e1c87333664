"""What tests build from: each idea once, with sensible defaults and keyword arguments.

* `journals`: empty migrated journals, as files and opened.
* `points`: operating points and catalogues.
* `carbon`: intensities as the journal keeps them, and forecast slots as policies see them.
* `messages`: what a training run posts to the daemon. `runs`: the same, written to a journal.
* `observations`: what a policy is asked: a run, its grid, its settings.
* `cycles`: a live cycle on a journal, with a run that it may switch.
* `accounts`: energy and prices slot by slot. `replays`: jobs and grids for replay.
"""
