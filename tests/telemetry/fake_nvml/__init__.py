"""The fake NVML: its physics against an oracle, its calls through nvidia-ml-py, its file."""
