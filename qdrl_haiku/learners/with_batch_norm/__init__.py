"""Learners whose networks have batch normalisation."""
