"""Sites and worlds whose power is known, which a real journal lives through."""
