"""Safe reading and writing of a checkpoint's files: regular files only, exact ranges only.

The map:
    documents.py      parses untrusted JSON documents
    hashing.py        hashes stored segments with several threads
    reader.py         reads the bytes of a box, and no others
    regular_files.py  opens only regular files below one folder
    staging.py        writes a folder under a temporary name, then renames it
"""
