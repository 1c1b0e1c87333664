"""Reading and writing a checkpoint's files, regular ones only and no byte more.

The map:
    documents.py      JSON documents that somebody else may have written
    hashing.py        digests of segments as they lie in files, by several threads
    reader.py         bytes of a box, and no others
    regular_files.py  regular files below one folder
    staging.py        a checkpoint folder while it is made
"""
