"""Flights from New York as tables that change: the library's main job on real data.

``history`` makes the changelogs, ``joins`` is the part to learn from, ``check`` computes the same
tables in plain SQL, ``report`` shows what happened. ``python -m examples.flights`` runs them all.
"""
