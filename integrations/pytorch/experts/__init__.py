"""Mixtures of experts that know what their GPUs cost.

router.py          chooses experts; may lean towards those whose GPUs cost little
costs.py           what a daemon says of costs, agreed on by all ranks
tilted_counts.py   the same lean for a model that balances by a bias of its own
huggingface.py     the same lean for Mixtral, Qwen-MoE and DeepSeek of transformers
recorder.py        records what tokens chose, for `wattmesh experts place RUN`
paired_probe.py    the loss of one batch with the lean of its routers and without it
upright.py         what a router is without its lean, for as long as one probe takes

Without costs, all of them compute what a plain router computes, bit for bit.
"""
