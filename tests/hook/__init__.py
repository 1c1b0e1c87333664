"""The hook inside training: switches, faults, checkpoints, orders; on real gloo groups.

tiny        the job that is trained: a small MLP over dp_shard and tp
zygote      starts ranks by fork from one process that has imported torch
warm        what the zygote does once instead of every rank
harness     one run: its folder, its launches, its daemon, what came out
daemon      a daemon on a Unix socket that gives orders, and can misbehave
"""
