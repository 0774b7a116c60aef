"""Compares methods on tasks by seeds: plans runs, scores and shows them."""
