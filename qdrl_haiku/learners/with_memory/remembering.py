"""Lets a learner's configuration say what surrounds it."""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from qdrl_haiku import specs
from qdrl_haiku.learners import base
from qdrl_haiku.learners.hyperparameters import with_growing_discount
from qdrl_haiku.learners.with_memory.recurrent import recurrent
from qdrl_haiku.learners.with_memory.window import side_by_side, window

_Factory = TypeVar("_Factory", bound=Callable[..., base.Learner])


def remembering(make: _Factory) -> _Factory:
  """Wraps a factory, so that `memory` and `discount_growth` have an effect."""
  signature = inspect.signature(make)

  @functools.wraps(make)
  def made(*args: object, **kwargs: object) -> base.Learner:
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    config = given.arguments["config"]
    spec = specs.observation_spec(given.arguments["observation_size"])
    kind, size = config.remembered()
    if kind == "window":
      given.arguments["observation_size"] = side_by_side(spec, size)
    learner = make(*given.args, **given.kwargs)
    if config.discount_growth:
      learner = with_growing_discount(learner, config.discount_growth)
    if tell := learner.policy:
      learner = learner._replace(
        policy=lambda state: tell(state)._replace(memory=config.memory))
    if kind == "window":
      return window(learner, spec, size)
    if config.cell is None:
      return learner
    return recurrent(
      learner, spec, config.cell, getattr(config, "sequence_length", 1),
      getattr(config, "burn_in", 0))

  return cast(_Factory, made)
