"""Tests of the checks V1 to V11: each holds on what is right and fails on its sabotaged twin."""
