"""How a job changes shape: layouts, catalogue, wire types."""
