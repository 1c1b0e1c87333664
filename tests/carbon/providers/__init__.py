"""Providers of carbon signals over real HTTP and from files: what is told, what a fault becomes."""
