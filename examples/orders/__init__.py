"""A shop's orders, from PostgreSQL by change data capture into three targets, killed on the way.

``shop`` is the database and what happens in it, Debezium sends its changes to topics, ``query`` is
the part to learn from, ``check`` compares the targets with PostgreSQL's own join, ``demo``
starts and stops all of them. ``python -m examples.orders`` runs it.
"""
