"""Writes a universal checkpoint in another system's format.

The map:
    casts.py        float32 to bfloat16 and back
    dcp.py          writes a folder that torch.distributed.checkpoint loads
    deepspeed.py    writes the universal layout that DeepSpeed loads
    engine.py       state of DeepSpeed's engine besides tensors, from any trainer's checkpoint
    huggingface.py  writes the parameters as safetensors shards
    stream.py       reads a tensor in row-major order, in pieces of bounded size
    target.py       the target folder, synced before it gets its name
    values.py       reads learning rates and other settings from trainer.json
"""
