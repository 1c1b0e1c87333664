"""Tests of the daemon: settings, loops, jobs, notification, life, figures."""
