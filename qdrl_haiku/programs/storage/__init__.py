"""Writes and reads a run's directory and its checkpoints."""
