"""Declares settings, and derives flags, checks and files from that."""

from qdrl_haiku.config.settings import (
  Missing,
  Settings,
  UsersOwn,
  Values,
  choice,
  setting,
)
from qdrl_haiku.config.tree import (
  Flag,
  check_effects,
  chosen,
  flags,
  replaced,
  values,
)

__all__ = [
  "Flag",
  "Missing",
  "Settings",
  "UsersOwn",
  "Values",
  "check_effects",
  "choice",
  "chosen",
  "flags",
  "replaced",
  "setting",
  "values",
]
