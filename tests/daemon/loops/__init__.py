"""What turns the daemon: loops, jobs, clocks, and the service manager."""
