"""Forecasts of the grid: causal, no worse than the profile, and with an honest band."""
