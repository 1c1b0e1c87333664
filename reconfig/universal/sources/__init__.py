"""Reads other systems' checkpoints without torch, and without running any of their code.

The map:
    contents.py            what a checkpoint holds, by FQN: chunks of tensors and plain values
    dcp/                   opens folders of torch.distributed.checkpoint
    deepspeed/             opens DeepSpeed's checkpoints
    detect.py              detects the kind of a checkpoint, and opens it
    huggingface.py         opens safetensors files, and a trainer's optimizer beside them
    own.py                 opens a universal checkpoint as a source
    plain.py               converts plain data from a pickle to JSON values
    plain_files.py         reads the small files that trainers write beside tensors
    safetensors_header.py  reads the header of a safetensors file
    slots.py               what shapes optimizer slots have, and that none is lost
    source.py              the result of opening any source: index, values, fingerprints
    ties.py                compares tensors that are declared to be tied
    torch_dist/            opens Megatron-core's `torch_dist` folders
"""
