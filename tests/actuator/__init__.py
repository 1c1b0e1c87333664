"""The actuator: rules by property and oracle; the rest on the fake library, in real processes."""
