"""The physical plan: operators, the exchanges between them, and the planner that makes both."""
