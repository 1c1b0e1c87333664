"""The pretraining example: equal in every layout, and what it is made of."""
