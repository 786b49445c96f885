"""The three operators of a star (``physical.stars``), each on one bucket."""
