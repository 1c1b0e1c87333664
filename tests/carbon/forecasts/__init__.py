"""Our own forecasts in the daemon, and the series they rest on."""
