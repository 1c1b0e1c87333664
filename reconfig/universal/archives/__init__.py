"""Torch's own archives, read and written without torch.

The map:
    archive.py         torch's archives (what `torch.save` writes) as byte ranges
    archive_writer.py  writes torch archives (what `torch.save` makes) without torch, streaming the
                       storages
    pickled.py         emits pickles (protocol 2) without importing what they name, and without ever
                       reading one
    rebuild.py         what pickles name, as inert values
    tensors.py         tensors of a torch archive as ranges of bytes in a file
    unpickle.py        foreign pickles as plain data
"""
