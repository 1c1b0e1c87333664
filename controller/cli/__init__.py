"""The command line: one small file per group of commands.

The map:
    accounting/         commands about joules and grams: budgets and reports
    carbon/             commands about the grid signal
    checkpoint/         commands about universal checkpoints
    configs/            commands about operating points, and `attach-check`
    doctor/             `wattmesh doctor`: its checks and its screen
    experts/            commands about experts: their costs, and where they should lie
    policy/             commands about plans, and about policies on recorded grids
    runs/               commands about runs: status, why, runs, and what an operator may ask for
    services/           commands that run, install or set up the parts of a site
    answers.py          asks a daemon, or a journal alone (journal_answers.py)
    client.py           a client of the daemon's API, standard library only
    drawing.py          draws pictures in a child process
    journal_answers.py  the API's answers from a journal, without a daemon
    main.py             runs one command; errors become one sentence and an exit code
    offline.py          what is known when the daemon does not answer
    options.py          the options that commands share
    output.py           prints JSON or a screen, coloured only on a terminal
    progress.py         a progress bar
    tables.py           aligns columns
    tree.py             maps commands to modules; imports only the one that was typed
    formats.py          formats numbers, times and grams; sparklines

Invariant: a command that reads imports neither pydantic nor sqlalchemy nor torch, so that it
answers at once; a command's `--json` has the same keys as the API's answer.
"""
