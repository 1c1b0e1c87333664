"""Writing a universal checkpoint in another system's format.

stream.py         the bytes of one tensor, row by row, in pieces of bounded size
target.py         the folder that is written: complete or not there
huggingface.py    safetensors shards of the parameters
dcp.py            a folder that torch.distributed.checkpoint loads
deepspeed.py      the universal layout that DeepSpeed loads
"""
