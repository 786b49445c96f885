"""The plan of a topology: frozen nodes that say what is computed, and their checks."""
