"""Writing a universal checkpoint in another system's format.

The map:
    casts.py        float32 to bfloat16 and back
    dcp.py          a folder that torch.distributed.checkpoint loads
    deepspeed.py    the universal layout that DeepSpeed loads
    engine.py       what DeepSpeed's engine keeps beside tensors, out of any trainer's checkpoint
    huggingface.py  safetensors shards of the parameters
    stream.py       the bytes of one tensor, row by row, in pieces of bounded size
    target.py       the files that are written, synced before the folder has its name
    values.py       learning rates and other settings, out of trainer.json
"""
