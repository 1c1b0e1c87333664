"""What a person types: one small file per group of commands.

The map:
    main.py      from the words typed to an exit code; errors become one sentence
    tree.py      which command lives in which module; loads only the one that was asked for
    options.py   the options that commands share
    client.py    the daemon's API over its Unix socket, standard library only
    answers.py   whom a reading command asks: a daemon, or (journal_answers.py) a journal alone
    output.py    one JSON object, or a screen whose colours end with the terminal
    words.py     numbers, times and grams as people read them; sparklines
    tables.py    columns that line up
    quick.py     status without waiting for the tree; status.py, status_screen.py
    offline.py   what the journal and the socket tell when the daemon does not answer
    budget.py    budget, budget --audit RUN, --replan NAME; budget_screen.py, period_screen.py
    report.py    report --month; report_screen.py, report_csv.py, report_picture.py (a process)
    why.py       why RUN, decisions; why_screen.py
    runs.py      runs
    operate.py   freeze, thaw, switch: what an operator may ask for
    carbon.py    carbon now, history, forecast, providers; carbon_screen.py, carbon_providers.py,
                 which asks them live
    settings.py  settings check, sample
    db.py        db upgrade, current
    policy.py    policy bench; policy_options.py, policy_screen.py; plan.py, policy plan, plan_*.py
    configs.py   configs list, show, profile; configs_screen.py, configs_worth.py, configs_json.py,
                 and configs_ways.py, what switching takes
    checkpoint.py  checkpoint convert, inspect, verify, export, prune; checkpoint_screen.py
    progress.py  a bar for long work on bytes
    doctor.py    doctor, and checks.py, what it looks at
    demo.py      demo

Invariant: a command that reads imports neither pydantic nor sqlalchemy nor torch, so that it
answers at once; a command's `--json` has the same keys as the API's answer.
"""
