"""Tests of the HTTP interface: the socket, its peers, its calls."""
