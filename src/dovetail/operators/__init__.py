"""Operators on one bucket: a law, over what is stored and what comes."""
