"""The programs that train, and their settings."""

import dataclasses
import types
from collections.abc import Mapping
from typing import NamedTuple

from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Values
from qdrl_haiku.learners import SkillAgentConfig
from qdrl_haiku.programs.experiment.config import Config
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.training import RepertoireConfig, TrainingConfig


class Program(NamedTuple):
  """Describes a program that trains."""

  name: str  # Of its launcher, without the suffix.
  defaults: Config  # Of its settings.
  # Names that settings once had in it, which are understood.
  former: Mapping[str, str] = types.MappingProxyType({})

  def flags(self) -> dict[str, config_lib.Flag]:
    """Returns the settings that command lines have, by name."""
    settings = self.settings()
    return {name: x for name, x in settings.items() if x.declared.offered}

  def settings(self) -> dict[str, config_lib.Flag]:
    """Returns the settings that can have an effect, by name."""
    missing = self.defaults.missing()
    found = {}
    for name, flag in config_lib.config_tree_flags(self.defaults).items():
      if "skills" in missing and flag.section == SkillAgentConfig.title:
        continue
      lacked = missing.get(flag.declared.needs or "")
      # If no setting takes the part away, no flag can bring it back.
      if lacked is None or lacked.by:
        found[name] = flag
    return found

  def configure(
    self, given: Values, typed: frozenset[str] | None = None
  ) -> Config:
    """Returns the defaults with values by flag, see `replace_in_config_tree`.

    With None typed, flags that aren't known are ignored too.
    """
    values = {self.former.get(name, name): x for name, x in given.items()}
    if typed is None:
      known = config_lib.config_tree_flags(self.defaults)
      values = {name: x for name, x in values.items() if name in known}
    return config_lib.replace_in_config_tree(self.defaults, values, typed)


# The length of the run and the skills decide what is left open.
_TRAINING = config_lib.replace_in_config_tree(
  TrainingConfig(), {"perturbation_interval": None, "num_eval_episodes": None})
TRAIN = Program(
  "train", Config(controller=None, training=_TRAINING),
  {"num_seeds": "population_size", "eval_interval": "perturbation_interval"})
TRAIN_PBT = Program(
  "train_pbt",
  Config(training=dataclasses.replace(_TRAINING, population_size=8)))
TRAIN_ME_PBT = Program(
  "train_me_pbt",
  Config(
    training=dataclasses.replace(_TRAINING, population_size=10),
    repertoire=RepertoireConfig()),
  {
    "gradient_population_size": "population_size",
    "num_replaced_by_best": "num_replaced"})
PROGRAMS = {x.name: x for x in (TRAIN, TRAIN_PBT, TRAIN_ME_PBT)}
"""The programs that train, by name."""


def experiment_program(config: Config) -> Program:
  """Returns the program that trains what a configuration describes."""
  if config.repertoire is not None:
    return TRAIN_ME_PBT
  return TRAIN if config.controller is None else TRAIN_PBT


def read_config(logdir: str) -> Config:
  """Reads the configuration of a run in a directory.

  Raises:
    ValueError: if there is no run, or its configuration is damaged.
  """
  settings = RunDirectory(logdir).settings()
  name = str(settings.get("launcher", "")).removesuffix(".py")
  try:
    return PROGRAMS.get(name, TRAIN_PBT).configure(settings)
  except (TypeError, ValueError) as error:
    raise ValueError(f"config.json in {logdir} is damaged: {error}") from error
