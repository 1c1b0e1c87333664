"""`wattmesh doctor`: the likeliest mistakes, each provoked and found."""
