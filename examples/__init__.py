"""Training scripts that show how to attach a job; what the demo and the tests train."""
