"""Declares settings, and derives flags, checks and files from that."""

from qdrl_haiku.config.settings import (
  Missing,
  Settings,
  UsersOwn,
  Values,
  setting,
)
from qdrl_haiku.config.tree import (
  Flag,
  check_config_tree,
  config_tree_flags,
  config_tree_values,
  replace_in_config_tree,
)
