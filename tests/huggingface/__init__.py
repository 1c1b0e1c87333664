"""Models of transformers moved by `integrations.huggingface`.

job.py        tiny models, trained alone and on ranks that are moved
"""
