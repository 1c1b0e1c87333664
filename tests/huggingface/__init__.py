"""Models of transformers moved by `integrations.pytorch.huggingface`.

documented.py  the script of docs/huggingface.md, with and without us
job.py         tiny models, trained alone and on ranks that are moved
running.py     one run of them
"""
