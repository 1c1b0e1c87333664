"""What is true now: sources, sampler, ledger, attribution, simulated devices."""
