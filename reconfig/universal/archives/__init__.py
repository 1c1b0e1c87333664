"""Torch's .pt archives, read and written without torch.

The map:
    archive.py         reads torch archives (`torch.save`) as byte ranges
    archive_writer.py  writes torch archives (`torch.save`) without torch, streaming the storages
    pickled.py         writes pickles (protocol 2) without importing the classes that they name
    rebuild.py         the classes and calls in pickles, as inert values
    tensors.py         tensors of a torch archive as byte ranges in a file
    unpickle.py        decodes pickles as plain data, without running them
"""
