"""Measures the speed of training."""
