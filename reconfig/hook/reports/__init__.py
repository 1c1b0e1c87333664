"""What a rank says of itself: its steps, its pace, its code, its switches.

The map:
    first_steps.py  when a run is at its pace after a switch
    own_code.py     what a run computes with, as a fingerprint
    profiled.py     what a run does differently while it is profiled or validated
    reported.py     what a script reports of its step, as numbers that JSON has
    switch_line.py  the one line that a switch leaves in the training log
"""
