"""Makes what a generation with a repertoire consists of, from its settings."""
