"""What the tests submit to Slurm: jobs on paper, ranks that answer, real training."""
