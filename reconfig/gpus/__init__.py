"""Which GPUs the processes of a launch compute on.

The map:
    own_gpus.py   which GPUs this process computes on, by UUID
    rank_gpus.py  what the ranks of one launch tell global rank 0 of their GPUs, through torchrun's
                  own store
"""
