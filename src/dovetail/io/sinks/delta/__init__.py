"""The sink of a Delta table. Calls go one way: sink, batch, merge or versions, tables, columns."""
