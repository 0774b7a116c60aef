"""How fast training is, and what the machine could do."""
