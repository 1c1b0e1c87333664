"""Every line of docs/attach.md: what a job may have, and what becomes of it in a switch.

states, averages     one kind of state each, through save and load
user                 a job that has nearly everything, attached as its owner would
training, loaders, own_save, tracker     that job in switches and restarts
"""
