"""The torchtitan adapter against the installed torchtitan: classes, configuration, source.

torchtitan's Trainer imports kernels that need a GPU build, so it cannot be run here: what the
adapter takes of it is compared with the source of the installed package.
"""
