"""What a generation with a repertoire is made of, from its settings."""
