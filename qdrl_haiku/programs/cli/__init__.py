"""The command line: flags, and the programs that they start."""

import os

# Before jax is imported: XLA complains at length about each program that it
# reads from the cache. Errors of programs are exceptions anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
