"""DeepSpeed ZeRO jobs, switched by restart."""
