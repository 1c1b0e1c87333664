"""The cost model of parallel layouts: laws, an oracle, tables in and out."""
