"""Tests of the control cycle: observe, decide, act on a real journal."""
