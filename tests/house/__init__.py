"""Tests of the test helpers and of the scripts that everything else stands on."""
