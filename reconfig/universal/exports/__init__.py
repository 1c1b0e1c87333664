"""A universal checkpoint written out in the formats of others."""
