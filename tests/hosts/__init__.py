"""One run on several hosts, each with a supervisor: network namespaces joined by a cable."""
