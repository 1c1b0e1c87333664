"""What is true now: sources, sampler, ledger, attribution, the fake NVML."""
