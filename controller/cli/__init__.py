"""What a person types: one small file per group of commands.

The map:
    accounting/         commands about joules and grams: budgets and reports
    carbon/             commands about the grid signal
    checkpoint/         commands about universal checkpoints
    configs/            commands about operating points, and about a script that is to have several
    doctor/             `wattmesh doctor`: what it looks at, and what it says
    policy/             commands about plans, and about policies on recorded grids
    runs/               commands about runs: status, why, runs, and what an operator may ask for
    services/           commands that run, install or set up the parts of a site
    answers.py          whom a reading command asks: a daemon, or (journal_answers.py) a journal
                        alone
    client.py           the daemon's API over its Unix socket, standard library only
    drawing.py          pictures for the command line, drawn in a child process
    journal_answers.py  the API's answers without a daemon
    main.py             from the words typed to an exit code; errors become one sentence
    offline.py          what the journal and the socket tell when the daemon does not answer
    options.py          the options that commands share
    output.py           one JSON object, or a screen whose colours end with the terminal
    progress.py         a bar for long work on bytes
    tables.py           columns that line up
    tree.py             which command lives in which module; loads only the one that was asked for
    words.py            numbers, times and grams as people read them; sparklines

Invariant: a command that reads imports neither pydantic nor sqlalchemy nor torch, so that it
answers at once; a command's `--json` has the same keys as the API's answer.
"""
