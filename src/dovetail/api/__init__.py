"""The API that users call: tables, streams, windowed tables, and queries of several results."""
