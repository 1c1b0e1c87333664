"""Context parallel: each rank holds a part of every sequence and attends to the whole.

    positions.py  which positions a rank holds: dealt head-tail
    context.py    a rank's positions, and how each layer attends: by one of three methods
    attention.py  what a method is
    gathered.py   keys and values are gathered whole
    ring.py       keys and values go round the ranks, one part at a time
    ulysses.py    each rank gets whole sequences of some of the heads, and gives them back
    resharded.py  a layer over fewer ranks than hold a sequence: they deal samples instead
    carried.py    a layer that is a recurrence: its state goes from rank to rank

The methods of attention compute the same; they differ in what they send and hold
(docs/parallelism.md).
"""
