"""Learners of skills: one wrapper, and what it rewards skills for."""
