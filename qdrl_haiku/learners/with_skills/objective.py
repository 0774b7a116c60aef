"""Describes what rewards skills: objectives, and what they learn."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from qdrl_haiku import networks, skills, specs, types
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import base, statistics

ADAM = base.Optimizer()
"""The optimiser of all that objectives learn."""
TASK_REWARD_WEIGHT = Hyperparameter(
  0.0, "weight of the task's reward, which is added to that of skills")
"""The hyperparameter `task_reward_weight`, which every objective has."""


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig(Settings):
  """Shapes the network of an objective, which rewards skills.

  The class attribute `hyperparameters` declares those of the objective.
  """

  title = "Skills"
  hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {
    "task_reward_weight": TASK_REWARD_WEIGHT}

  hidden_layer_sizes: tuple[int, ...] | None = setting(
    None,
    "Widths of the hidden layers of the network that rewards skills: diayn's "
    "and smerl's discriminator, metra's representation, dads's dynamics; by "
    "default --hidden_layer_sizes.",
    low=1, flag="discriminator_hidden_layer_sizes", offered=False)
  activation: str = setting(
    "relu", "Activation of these layers, see `NetworkConfig`.", flag="")
  layer_norm: bool = setting(
    False, "Whether these layers are normalised.", flag="")
  # In place of the base learner's, which would normalise the skills too.
  normalize_observations: bool = setting(
    False,
    "Whether the agent and the objective see observations normalised by "
    "running statistics.",
    flag="")

  def make_network(self, input_size: int, num_outputs: int) -> networks.Network:
    """Makes the network, inputs [..., I] -> [..., num_outputs]."""
    sizes = self.hidden_layer_sizes
    return networks.make_discriminator(
      input_size, num_outputs, (256, 256) if sizes is None else sizes,
      activation=self.activation, layer_norm=self.layer_norm)


class SkillSteps(NamedTuple):
  """Holds what an objective sees of steps, with any leading axes."""

  observation: types.Tree  # [..., O], or a tree, without the skill.
  next_observation: types.Tree  # Of the same kind.
  skill: types.Array  # [..., K].
  # [..., D], or None where it wasn't stored.
  descriptor: types.Array | None = None
  next_descriptor: types.Array | None = None  # [..., D], or None.
  # [...], return of the latest whole episode of the skill, or None; see
  # `environments.SkillEnvironment`.
  skill_return: types.Array | None = None


class SkillGenotype(NamedTuple):
  """Holds what a repertoire stores of an agent with skills."""

  agent: types.Tree  # The base learner's genotype.
  learned: dict[str, types.Tree]  # See `SkillState`.
  # See `SkillState`.
  observation_statistics: statistics.ObservationStatistics | None


class SkillState(NamedTuple):
  """One agent with skills."""

  agent: types.State  # The base learner's state.
  # What its objective has learned, by name: parameters of a network, and
  # perhaps numbers and statistics.
  learned: dict[str, types.Tree]
  # Adam's moments of what is learned by gradients, by its name.
  optimizers: dict[str, types.State]
  # Of observations without their skills, or None.
  observation_statistics: statistics.ObservationStatistics | None

  def with_learned(self, **learned: types.Tree) -> "SkillState":
    """Returns the state with some of what it has learned replaced."""
    return self._replace(learned=self.learned | learned)

  def descend(
    self, name: str, loss_fn: Callable[[types.Tree], base.LossAndMore],
    learning_rate: types.Array,
  ) -> tuple["SkillState", base.Descent]:
    """Takes a step of something learned on a loss, as `Optimizer.descend` does.

    Args:
      name: of what is learned, in `learned`.
      loss_fn: of its parameters, see `Optimizer.descend`.
      learning_rate: [].

    Returns:
      The state after the step, and what the optimiser returned.
    """
    found = ADAM.descend(
      loss_fn, self.learned[name], self.optimizers[name], learning_rate)
    optimizers = self.optimizers | {name: found.optimizer_state}
    after = self._replace(optimizers=optimizers)
    return after.with_learned(**{name: found.params}), found


class SkillObjective(NamedTuple):
  """Rewards steps for their skills, and learns from the steps it rewards.

  Attributes:
    name: of the algorithm, by which its scores are named.
    prior: what skills are drawn from.
    declared: its hyperparameters, `task_reward_weight` among them.
    init: (key) -> what it has learned at first, by name: see
      `SkillState.learned`. Another objective may add to it.
    descended: names of what is learned by gradients.
    learn: (state, hyperparameters, steps [B]) -> (state that has learned from
      the steps, rewards [B] by the given state's networks, metrics).
    score: (state, steps [N, T] of N episodes) -> arrays [N, T] by name:
      `diversity`, the rewards; of some objectives `information`, in nats, and
      bool `told`, whether the likeliest skill is the one that acted.
    goal_skill: (state, observation, descriptor [..., D] or None, goal
      [..., G]) -> [..., K], the skill that leads to the goal; None if that
      isn't known.
    goal_input: what a goal is: a "descriptor" or an "observation".
    extras: names of the transitions' extras that it sees.
    normalizes: whether agent and objective see observations normalised by
      running statistics; the skills are left alone.
  """

  name: str
  prior: skills.SkillPrior
  declared: Mapping[str, Hyperparameter]
  init: Callable[[types.Key], dict[str, types.Tree]]
  descended: tuple[str, ...]
  learn: Callable[
    [SkillState, types.Hyperparams, SkillSteps],
    tuple[SkillState, types.Array, types.Metrics]]
  score: Callable[[SkillState, SkillSteps], dict[str, types.Array]]
  goal_skill: (
    Callable[
      [SkillState, types.Tree, types.Array | None, types.Array], types.Array]
    | None)
  goal_input: str
  extras: tuple[str, ...] = ()
  normalizes: bool = False


def skill_input(
  kind: str, observation_size: int | specs.Observation,
  descriptor_size: int | None, setting: str,
) -> tuple[
  int,
  Callable[[SkillState, types.Tree, types.Array | None], types.Array]]:
  """Makes what an objective's network sees of a state.

  Args:
    kind: "descriptor" or "observation".
    observation_size: O, without the skill, or the spec of observations.
    descriptor_size: D, or None where the environment has no descriptor.
    setting: which chose the kind, for the message.

  Returns:
    I, how many numbers it sees, and a function (state, observation without the
    skill, descriptor [..., D] or None) -> [..., I]: the descriptor, or the
    observation, normalised by the state's `observation_statistics`, as
    `specs.as_vector`. It refuses descriptors that weren't stored.

  Raises:
    ValueError: if it is to see a descriptor, and there is none.
  """
  spec = specs.observation_spec(observation_size)

  def see_observation(
    state: SkillState, observation: types.Tree, _: types.Array | None
  ) -> types.Array:
    return specs.as_vector(
      statistics.normalize_by_statistics(
        state.observation_statistics, observation), spec)

  def see_descriptor(
    state: SkillState, _: types.Tree, descriptor: types.Array | None
  ) -> types.Array:
    if descriptor is None:
      raise ValueError(
        "the transitions lack next_descriptor, or descriptor, in their extras, "
        "which skills are rewarded by; name them in the objective's extras.")
    return descriptor

  if kind == "observation":
    return specs.observation_size(spec), see_observation
  if descriptor_size is None:
    raise ValueError(
      f"{setting}=descriptor, but the environment has no state descriptor; "
      f"take one that has, or {setting}=observation.")
  return descriptor_size, see_descriptor
