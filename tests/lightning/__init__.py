"""Lightning's Trainer: a script without us, and its diff, moved through layouts."""
