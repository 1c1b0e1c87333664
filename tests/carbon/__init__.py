"""Carbon sources against recorded traces and a grid server on real HTTP."""
