"""The ledgers against what was true: worlds whose power is known, lived through a real journal."""
