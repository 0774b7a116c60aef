"""Containers: what of evaluated individuals is kept, and where."""
