"""Wrappers that make learners remember, as their configurations say."""
