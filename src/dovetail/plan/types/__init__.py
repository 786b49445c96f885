"""Types of columns, spans of time, aggregates and expressions, as users write them."""
