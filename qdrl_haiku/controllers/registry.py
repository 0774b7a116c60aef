"""Controllers by name, as configurations choose them."""

from collections.abc import Callable

from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Settings
from qdrl_haiku.controllers.base import Controller
from qdrl_haiku.controllers.mf_pbt import MFPBTConfig, mf_pbt
from qdrl_haiku.controllers.pb2 import PB2Config, pb2
from qdrl_haiku.controllers.pbt import PBTConfig, RandomSearchConfig, pbt
from qdrl_haiku.controllers.successive_halving import (
  SuccessiveHalvingConfig,
  successive_halving,
)
from qdrl_haiku.types import Tree

KINDS: dict[str, Settings] = {
  "pbt": PBTConfig(), "pb2": PB2Config(), "mf_pbt": MFPBTConfig(),
  "random_search": RandomSearchConfig(),
  "successive_halving": SuccessiveHalvingConfig()}
"""The configurations of all controllers, by name."""
_MAKERS: dict[type[Settings], Callable[..., Controller]] = {
  PBTConfig: pbt,
  PB2Config: pb2,
  MFPBTConfig: mf_pbt,
  # Only non-finite members are replaced, by others with fresh hyperparameters.
  RandomSearchConfig: lambda config, search_space: pbt(
    PBTConfig(exploit="none", explore="resample"), search_space),
  SuccessiveHalvingConfig: successive_halving}


def make_controller(config: Settings, search_space: Tree) -> Controller:
  """Makes a configuration's controller: one of `KINDS`, or a user's own."""
  if isinstance(config, config_lib.UsersOwn):
    return config.call("controller", Controller, search_space=search_space)
  return _MAKERS[type(config)](config, search_space)
