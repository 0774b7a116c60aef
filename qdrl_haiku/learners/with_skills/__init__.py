"""Learners of skills: one wrapper, and the objectives that reward skills."""
