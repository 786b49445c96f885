"""Measured claims: each benchmark runs what it compares side by side, in one run."""
