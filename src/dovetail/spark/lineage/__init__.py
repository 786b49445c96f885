"""Lineage of queries, as events of OpenLineage."""
