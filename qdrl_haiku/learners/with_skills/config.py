"""Learners with skills, as configurations choose them."""

import dataclasses
from collections.abc import Callable

from qdrl_haiku import specs
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.config import AgentConfig
from qdrl_haiku.learners.registry import BASES
from qdrl_haiku.learners.with_skills.dads import DADSConfig, dads_objective
from qdrl_haiku.learners.with_skills.diayn import DIAYNConfig, diayn_objective
from qdrl_haiku.learners.with_skills.metra import METRAConfig, metra_objective
from qdrl_haiku.learners.with_skills.objective import (
  ObjectiveConfig,
  SkillObjective,
)
from qdrl_haiku.learners.with_skills.smerl import SMERLConfig, smerl_objective
from qdrl_haiku.skills import SkillConfig

_OBJECTIVES: dict[type[ObjectiveConfig], Callable[..., SkillObjective]] = {
  DIAYNConfig: diayn_objective, DADSConfig: dads_objective,
  METRAConfig: metra_objective, SMERLConfig: smerl_objective}
_FITNESS = (
  "episode_return", "coverage", "diversity_return", "discriminator_accuracy",
  "mutual_information_lower_bound")


def _fitness(default: str) -> str:
  return setting(
    default,
    f"Which score of an evaluation is the fitness: {', '.join(_FITNESS)}.",
    choices=_FITNESS)


@dataclasses.dataclass(frozen=True)
class SkillAgentConfig(Settings):
  """Composes an agent of a base learner, skills and an objective."""

  title = "Skills"

  base: Settings = setting(
    "sac", "Algorithm that agents with skills learn to act by, as --learner.",
    kinds=BASES, flag="base_learner")
  skills: SkillConfig = SkillConfig()
  fitness: str = _fitness("diversity_return")
  objective: ObjectiveConfig = ObjectiveConfig()

  @property
  def hyperparameters(self) -> dict[str, Hyperparameter]:
    """Declarations of the agents' hyperparameters, but for a user's own."""
    return {
      **getattr(self.base, "hyperparameters", {}),
      **self.objective.hyperparameters}

  def __post_init__(self) -> None:
    super().__post_init__()
    is_discrete = self.skills.skill_type == "discrete"
    if self.fitness == "discriminator_accuracy" and not is_discrete:
      raise ValueError(
        "fitness=discriminator_accuracy is for discrete skills; take "
        "diversity_return or (not with metra) mutual_information_lower_bound.")


@dataclasses.dataclass(frozen=True)
class DIAYNAgentConfig(SkillAgentConfig):
  """Composes DIAYN of a base learner, skills and a discriminator."""

  objective: DIAYNConfig = DIAYNConfig()


@dataclasses.dataclass(frozen=True)
class METRAAgentConfig(SkillAgentConfig):
  """Composes METRA of a base learner, skills and a representation."""

  skills: SkillConfig = SkillConfig(skill_type="continuous")
  objective: METRAConfig = METRAConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.fitness == "mutual_information_lower_bound":
      raise ValueError(
        f"fitness={self.fitness} isn't measured with metra; take "
        "diversity_return or coverage.")


@dataclasses.dataclass(frozen=True)
class DADSAgentConfig(SkillAgentConfig):
  """Composes DADS of a base learner, skills and skill dynamics."""

  objective: DADSConfig = DADSConfig()


@dataclasses.dataclass(frozen=True)
class SMERLAgentConfig(SkillAgentConfig):
  """Composes SMERL of a base learner, skills and a discriminator."""

  fitness: str = _fitness("episode_return")
  objective: SMERLConfig = SMERLConfig()


KINDS: dict[str, AgentConfig | SkillAgentConfig] = {
  **BASES, "diayn": DIAYNAgentConfig(), "dads": DADSAgentConfig(),
  "metra": METRAAgentConfig(), "smerl": SMERLAgentConfig()}
"""The configurations of all learners, by name."""
DECLARATIONS: dict[str, dict[str, Hyperparameter]] = {
  name: {
    learner: config.hyperparameters[name]
    for learner, config in KINDS.items() if name in config.hyperparameters}
  for config in KINDS.values() for name in config.hyperparameters}
"""Declares each hyperparameter, by its name and by the learner's."""


def make_objective(
  config: SkillAgentConfig, observation_size: int | specs.Observation,
  descriptor_size: int | None, agent: AgentConfig,
) -> SkillObjective:
  """Makes the objective, which rewards skills, of a configuration.

  Args:
    config: of one of `KINDS`.
    observation_size: O, without the skill, or the spec of observations.
    descriptor_size: D, or None where the environment has no descriptor.
    agent: the agent's settings. The objective uses their activation and
      normalisation, and their widths where it has none.

  Raises:
    ValueError: if a setting doesn't fit the environment or the skills.
  """
  own, network = config.objective, agent.network
  shaped = dataclasses.replace(
    own,
    hidden_layer_sizes=(
      network.hidden_layer_sizes
      if own.hidden_layer_sizes is None
      else own.hidden_layer_sizes),
    activation=network.activation,
    layer_norm=getattr(network, "layer_norm", False),
    normalize_observations=agent.normalizes)
  return _OBJECTIVES[type(own)](
    observation_size, config.skills.prior(), descriptor_size, shaped)
