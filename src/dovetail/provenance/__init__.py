"""The rows that make a row of a result, found in stored state."""
