"""Replay: the world, the forecasts, and the policies over small synthetic grids."""
