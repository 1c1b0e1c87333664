"""Where readings come from: NVML, RAPL, Prometheus, real boards."""
