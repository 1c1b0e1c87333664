"""The docs name everything that a person can meet, and their generated pages are current."""
