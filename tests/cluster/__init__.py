"""Tests of several runs on one cluster."""
