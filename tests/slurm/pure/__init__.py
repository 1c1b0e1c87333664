"""What needs no Slurm: answers of its commands, the launch book, pure parts."""
