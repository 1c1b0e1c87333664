"""Writing a universal checkpoint in another system's format.

stream.py         the bytes of one tensor, row by row, in pieces of bounded size
casts.py          float32 to bfloat16 and back
target.py         the files that are written, synced before the folder has its name
values.py         learning rates and other settings, out of trainer.json
huggingface.py    safetensors shards of the parameters
dcp.py            a folder that torch.distributed.checkpoint loads
deepspeed.py      the universal layout that DeepSpeed loads
checkpoint.py     the one door: export a checkpoint folder to any of the three
"""
