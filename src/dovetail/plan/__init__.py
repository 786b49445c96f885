"""What a topology means: frozen nodes, their checks, and the stages that run them."""
