"""Controllers by name, as configurations choose them."""

from collections.abc import Callable

from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Settings
from qdrl_haiku.controllers.base import Controller
from qdrl_haiku.controllers.mf_pbt import MFPBTConfig, mf_pbt
from qdrl_haiku.controllers.pb2 import PB2Config, pb2
from qdrl_haiku.controllers.pbt import (
  PBTConfig,
  RandomSearchConfig,
  pbt,
  random_search,
)
from qdrl_haiku.controllers.successive_halving import (
  SuccessiveHalvingConfig,
  successive_halving,
)
from qdrl_haiku.types import Tree

KINDS: dict[str, Settings] = {
  "pbt": PBTConfig(),
  "pb2": PB2Config(),
  "mf_pbt": MFPBTConfig(),
  "random_search": RandomSearchConfig(),
  "successive_halving": SuccessiveHalvingConfig(),
}
"""The configurations of all controllers, by name."""
_MAKERS: dict[type[Settings], Callable[..., Controller]] = {
  PBTConfig: pbt,
  PB2Config: pb2,
  MFPBTConfig: mf_pbt,
  RandomSearchConfig: lambda config, search_space: random_search(search_space),
  SuccessiveHalvingConfig: successive_halving,
}


def make_controller(config: Settings, search_space: Tree) -> Controller:
  """Makes the controller that a configuration describes.

  Args:
    config: of one of `KINDS`, or a user's own function of the search space.
    search_space: a tree shaped as the hyperparameters, its leaves ranges.

  Returns:
    The controller.

  Raises:
    ValueError: if a user's function makes something else, or if a setting
      doesn't fit the search space.
  """
  if isinstance(config, config_lib.UsersOwn):
    return config.call("controller", Controller, search_space=search_space)
  return _MAKERS[type(config)](config, search_space)
