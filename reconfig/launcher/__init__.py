"""What starts the ranks of a job, as wattmesh needs it: it holds a run's next launch.

The map:
    command_line.py what the command lines of launchers share
    contract.py     what wattmesh asks of every launcher
    hosts/          one run on several hosts, of which the first decides
    launch_book.py  which of a run's launches, held by a scheduler, may train
    nodes_ahead.py  what is free when, as a launcher knows it
    own_clock.py    a supervisor that is its own alarm clock
    patience.py     asks a launcher again that does not answer
    queue_waits.py  how long nodes that were given back take to return
    sized_clock.py  one of several hosts: the next launch may have another size
    sleeper.py      a supervisor's part in sleep and in another size
    supervisor.py   launches a job, and launches it again when that helps
    torch_agent.py  starts the ranks of one host through torchrun
    way_back.py     whether a launch of another size has failed, so that the run goes back
"""
