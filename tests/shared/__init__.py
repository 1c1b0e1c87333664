"""Tests of the types that every room shares: layout, wire, switch states, durable files."""
