"""The sampler: its readings, its faults, and the journal that it writes to."""
