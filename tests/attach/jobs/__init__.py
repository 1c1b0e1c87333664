"""Jobs that these tests train, attached as their owners would."""
