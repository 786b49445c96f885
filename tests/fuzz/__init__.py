"""Random topologies, changelogs, cuts and settings, judged by definitions that share no code with
``src``: the models of the other tests, DuckDB's SQL, Kafka Streams. ``python -m fuzz --help``.

A case (``case.Case``) is plain data. Drawing, shrinking, writing to ``cases/`` and replaying all
work on it, and ``judges.judge`` says whether it holds.
"""
