"""The families of operators, each a ``bench.family.Family``."""
