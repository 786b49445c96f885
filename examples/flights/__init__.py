"""Flights from New York as tables that change and as streams: the library's job on real data.

``history`` makes the logs, ``joins`` is the part to learn from, ``check`` computes the same
without dovetail, ``report`` shows what happened. ``python -m examples.flights`` runs them all.
"""
