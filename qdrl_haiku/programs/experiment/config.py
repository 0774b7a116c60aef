"""The configuration of a whole run, and the programs that train."""

import dataclasses
import types
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from qdrl_haiku import config as config_lib
from qdrl_haiku import controllers, learners
from qdrl_haiku.config import Missing, Settings, Values, setting
from qdrl_haiku.environments import EnvironmentConfig
from qdrl_haiku.programs.runs.config import RunConfig
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.training import RepertoireConfig, TrainingConfig


def _hyperparameter_help(
  of_learners: Mapping[str, learners.Hyperparameter]
) -> str:
  first = next(iter(of_learners.values()))
  if first.default is None:
    return f"Hyperparameter: {first.help}."
  others = "".join(
    f", of {learner} {x.default:g}" for learner, x in of_learners.items()
    if x.default != first.default)
  return f"Hyperparameter ({first.default:g}{others}): {first.help}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Settings):
  """Configures a whole run: what is trained, how, and for how long.

  Without a controller the agents are runs of their own, side by side; with a
  repertoire the run is MAP-Elites, or, if members train, ME-PBT.
  """

  environment: EnvironmentConfig = EnvironmentConfig()
  run: RunConfig = RunConfig()
  training: TrainingConfig = TrainingConfig()
  learner: Settings = setting(
    "sac",
    "Algorithm of each agent: sac, td3, crossq, xqc, ppo, dqn, pqn, of which "
    "sac, ppo, dqn and pqn take discrete actions; with skills diayn, dads, "
    "metra, smerl; or package.module:function, which is called with "
    "observation_size and action_size and returns a Learner.",
    kinds=learners.KINDS, title="Learner")
  hyperparams: Mapping[str, float] = setting(
    {},
    "name=value, of a hyperparameter of a learner of your own. Repeatable, the "
    "last of a name counts.",
    keys={
      name: _hyperparameter_help(of_learners)
      for name, of_learners in learners.DECLARATIONS.items()},
    flag="hyperparam", needs="learning", title="Hyperparameters")
  controller: Settings | None = setting(
    "pbt",
    "How the population is tuned: pbt, pb2, mf_pbt, random_search, "
    "successive_halving, or package.module:function, a function of the search "
    "space that returns a controllers.Controller.",
    kinds=controllers.KINDS, needs="members", title="Controller")
  search_space: tuple[str, ...] = setting(
    (),
    "name:kind:low:high, of kind uniform, log_uniform or one_minus_log_uniform;"
    " name:choice:value:value...; or name:fixed:value. Repeatable, the last of "
    "a name counts; if given at all, hyperparameters that aren't named are "
    "fixed.",
    repeatable=True, needs="controller", title="Controller")
  repertoire: RepertoireConfig | None = None

  def missing(self) -> Mapping[str, Missing]:
    """Returns the parts that the configuration lacks, by name."""
    found = dict(self.environment.missing())
    if self.repertoire is None:
      found["repertoire"] = Missing("there is no repertoire", ())
    else:
      found |= self.repertoire.missing()
      found["skills"] = Missing("an elite of a repertoire has no skills", ())
      why = (
        "elites are scored by one evaluation, and the controller decides "
        "after each generation")
      found["decisions"] = Missing(why, ())
    if self.run.num_generations is not None:
      why = "--num_generations says how long the run is"
      found["timesteps"] = Missing(why, ("num_generations",))
    if self.controller is None:
      alone = Missing("without a controller no agent is replaced", ())
      if self.repertoire is None:
        found["pictures"] = alone
      return found | dict.fromkeys(
        ("controller", "decisions", "replacement", "searched"), alone)
    rule = getattr(self.controller, "exploit", None)
    if isinstance(self.controller, controllers.RandomSearchConfig):
      why = "with --controller=random_search no agent is replaced"
      found["replacement"] = Missing(why, ("controller",))
    elif rule == "none":
      why = "with --exploit=none no agent is replaced"
      found["replacement"] = Missing(why, ("exploit",))
    if "replacement" in found:
      found.setdefault("decisions", found["replacement"])
    said = [text.split(":")[1:2] for text in self.search_space]
    if said and all(kind == ["fixed"] for kind in said):
      why = "all hyperparameters are fixed"
      found["searched"] = Missing(why, ("search_space",))
    return found

  def build(self) -> NoReturn:
    """Raises an error that names what has replaced it."""
    raise TypeError("config.build() is now experiment.build(config).")

  @property
  def algorithm(self) -> str:
    """Name of the algorithm, for the name of a run's directory."""
    learner = config_lib.config_tree_values(self)["learner"].replace(":", "-")
    if self.repertoire is not None:
      return f"{self.repertoire.algorithm}_{learner}"
    return learner if self.controller is None else f"pbt_{learner}"


class Launcher(NamedTuple):
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
    found, of_skills = {}, learners.SkillAgentConfig.title
    for name, flag in config_lib.config_tree_flags(self.defaults).items():
      if "skills" in missing and flag.section == of_skills:
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
TRAIN = Launcher(
  "train", Config(controller=None, training=_TRAINING),
  {"num_seeds": "population_size", "eval_interval": "perturbation_interval"})
"""Trains agents side by side."""
TRAIN_PBT = Launcher(
  "train_pbt",
  Config(training=dataclasses.replace(_TRAINING, population_size=8)))
"""Trains a population that a controller tunes."""
TRAIN_ME_PBT = Launcher(
  "train_me_pbt",
  Config(
    training=dataclasses.replace(_TRAINING, population_size=10),
    repertoire=RepertoireConfig()),
  {
    "gradient_population_size": "population_size",
    "num_replaced_by_best": "num_replaced"})
"""Fills a repertoire."""
LAUNCHERS = {x.name: x for x in (TRAIN, TRAIN_PBT, TRAIN_ME_PBT)}
"""All three by name."""


def experiment_launcher(config: Config) -> Launcher:
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
    return LAUNCHERS.get(name, TRAIN_PBT).configure(settings)
  except (TypeError, ValueError) as error:
    raise ValueError(f"config.json in {logdir} is damaged: {error}") from error
