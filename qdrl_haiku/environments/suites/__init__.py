"""Environments of other packages, as instances of ours."""
