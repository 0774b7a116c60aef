"""Emitters: where the individuals come from that are evaluated next."""
