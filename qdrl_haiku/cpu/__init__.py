"""Rewrites programs so that XLA is fast on CPUs; `QDRL_PLAIN=1` leaves them.

The rest of the package meets this by `platform` alone.
"""
