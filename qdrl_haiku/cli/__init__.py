"""The command line: flags, what is made of them, and programs."""

import os

# Before jax is imported: XLA complains at length about each program that it
# reads from the cache. What is an error to us is an exception anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
