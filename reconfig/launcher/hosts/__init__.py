"""One run on several hosts: a supervisor on each, of which the first decides.

The map:
    channel.py    sentences between two supervisors that know one secret
    follower.py   the supervisor of another host: starts ranks as the leader says
    followers.py  the leader's connections to the other hosts
    launcher.py   starts the ranks of one launch on all its hosts
    meeting.py    how the hosts find each other: a file in the run folder
"""
