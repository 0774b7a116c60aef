"""Wraps a learner so that it learns skills, whatever rewards them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, networks, skills, types
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.check import (
  check_learner_rollout,
  check_learner_update,
)
from qdrl_haiku.learners.hyperparameters import Hyperparameter

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
  """Holds what an objective sees of steps, with any leading axes.

  Attributes:
    observation: [..., O], without the skill.
    next_observation: [..., O], likewise.
    skill: [..., K].
    descriptor: [..., D], or None where it wasn't stored.
    next_descriptor: [..., D], likewise.
    skill_return: [...], return of the latest whole episode of the skill,
      likewise; see `environments.SkillEnvironment`.
  """

  observation: types.Array
  next_observation: types.Array
  skill: types.Array
  descriptor: types.Array | None = None
  next_descriptor: types.Array | None = None
  skill_return: types.Array | None = None


class SkillObjective(NamedTuple):
  """Rewards steps for their skills, and learns from the steps it rewards.

  Attributes:
    name: of the algorithm, by which its scores are named.
    prior: what skills are drawn from.
    declared: its hyperparameters, `task_reward_weight` among them.
    state: the type of an agent's states: a NamedTuple of `agent`, the base
      learner's state, `observation_statistics`, and fields of its own.
    genotype: the type of genotypes, likewise.
    init: (key) -> the objective's own fields of a new genotype, by name.
    begin: (genotype) -> the fields of a state that a genotype lacks, such as
      the states of optimisers.
    learn: (state, hyperparameters, steps [B]) -> (state that has learned from
      the steps, rewards [B] by the given state's networks, metrics).
    score: (state, steps [N, T] of N episodes) -> arrays [N, T] by name:
      `diversity`, the rewards; of some objectives `information`, in nats, and
      bool `told`, whether the likeliest skill is the one that acted.
    goal_skill: (state, observation [..., O], descriptor [..., D] or None, goal
      [..., G]) -> [..., K], the skill that leads to the goal; None if that
      isn't known.
    goal_input: what a goal is: a "descriptor" or an "observation".
    extras: names of the transitions' extras that it sees.
  """

  name: str
  prior: skills.SkillPrior
  declared: Mapping[str, Hyperparameter]
  state: type[types.State]
  genotype: type[types.Tree]
  init: Callable[[types.Key], dict[str, types.Tree]]
  begin: Callable[[types.Tree], dict[str, types.Tree]]
  learn: Callable[
    [types.State, types.Hyperparams, SkillSteps],
    tuple[types.State, types.Array, types.Metrics]]
  score: Callable[[types.State, SkillSteps], dict[str, types.Array]]
  goal_skill: (
    Callable[
      [types.State, types.Array, types.Array | None, types.Array], types.Array]
    | None)
  goal_input: str
  extras: tuple[str, ...] = ()


def skill_input(
  kind: str, state: types.State, observation: types.Array,
  descriptor: types.Array | None,
) -> types.Array:
  """Returns the part of states that an objective's network sees.

  Args:
    kind: "descriptor" or "observation".
    state: whose `observation_statistics` normalise observations.
    observation: [..., O], without the skill.
    descriptor: [..., D], or None where it wasn't stored.

  Raises:
    ValueError: if descriptors weren't stored.
  """
  if kind == "observation":
    return statistics.normalize_by_statistics(
      state.observation_statistics, observation)
  if descriptor is None:
    raise ValueError(
      "the transitions lack next_descriptor, or descriptor, in their extras, "
      "which skills are rewarded by; name them in the objective's extras.")
  return descriptor


def skill_input_size(
  kind: str, observation_size: int, descriptor_size: int | None, setting: str
) -> int:
  """Returns how many numbers the network of an objective sees of a state.

  Args:
    kind: "descriptor" or "observation".
    observation_size: O, without the skill.
    descriptor_size: D, or None where the environment has no descriptor.
    setting: which chose the kind, for the message.

  Raises:
    ValueError: if it is to see a descriptor, and there is none.
  """
  if kind == "observation":
    return observation_size
  if descriptor_size is None:
    raise ValueError(
      f"{setting}=descriptor, but the environment has no state descriptor; "
      f"take one that has, or {setting}=observation.")
  return descriptor_size


def skill_learner(
  base_learner: base.Learner, observation_size: int, objective: SkillObjective,
  normalize_observations: bool,
) -> base.Learner:
  """Makes a learner that is rewarded for its skills.

  Batch after batch the objective computes rewards, then learns from the batch;
  after that the base learner learns from all batches together. A rollout of an
  on-policy base learner is T batches, each one step of all E environments: T
  networks in turn reward it, each having learned from the step before.
  Observations end with the skill [K], as `environments.SkillEnvironment` makes
  them.

  Its hyperparameters are one dict, of the base learner's and the objective's.
  If the base learner's are no dict, or share a name with the objective's, they
  become the entry `base` of it.

  Args:
    base_learner: learns to act; made for O + K observations.
    observation_size: O, without the skill.
    objective: what rewards the skills.
    normalize_observations: whether the base learner sees observations
      normalised by running statistics; the skills are left alone.
  """
  defaults, declared, base_hyperparams = _hyperparams(
    base_learner, objective.declared)

  def init(key: types.Key) -> types.State:
    agent_key, objective_key = jax.random.split(key)
    genotype = objective.genotype(
      agent=None,
      observation_statistics=statistics.init_statistics(
        observation_size, normalize_observations),
      **objective.init(objective_key))
    return _state(genotype, base_learner.init(agent_key))

  def _state(genotype: types.Tree, agent: types.State) -> types.State:
    fields = genotype._asdict() | {"agent": agent}
    return objective.state(**fields, **objective.begin(genotype))

  def genotype(state: types.State) -> types.Tree:
    stored = base.learner_state_parts(state, objective.genotype)
    return stored._replace(agent=base_learner.genotype(state.agent))

  def from_genotype(genotype: types.Tree) -> types.State:
    return _state(genotype, base_learner.from_genotype(genotype.agent))

  def normalize(state: types.State, observation: types.Array) -> types.Array:
    if state.observation_statistics is None:
      return observation
    normalized = statistics.normalize_by_statistics(
      state.observation_statistics, observation[..., :observation_size])
    skill = observation[..., observation_size:]
    return jnp.concatenate([normalized, skill], axis=-1)

  def observe(state: types.State, observation: types.Array) -> types.State:
    seen = statistics.observe_statistics(
      state, observation[..., :observation_size])
    agent = base_learner.observe(state.agent, normalize(state, observation))
    return seen._replace(agent=agent)

  @eager.compiled_if_eager()
  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    if base_learner.learns_from == "rollout":
      check_learner_rollout(transitions, hyperparams, defaults)
    else:
      check_learner_update(
        transitions, hyperparams, defaults, base_learner.batches_per_update)

    def relabel(
      state: types.State, batch: types.Transition
    ) -> tuple[types.State, tuple[types.Transition, types.Metrics]]:
      steps = SkillSteps(
        batch.observation[..., :observation_size],
        batch.next_observation[..., :observation_size],
        batch.observation[..., observation_size:],
        batch.extras.get("descriptor"), batch.extras.get("next_descriptor"),
        batch.extras.get("skill_return"))
      after, intrinsic, metrics = objective.learn(state, hyperparams, steps)
      batch = batch._replace(
        observation=normalize(state, batch.observation),
        reward=intrinsic + hyperparams["task_reward_weight"] * batch.reward,
        next_observation=normalize(state, batch.next_observation))
      metrics["intrinsic_reward"] = jnp.mean(intrinsic)
      return after, (batch, metrics)

    state, (transitions, metrics) = jax.lax.scan(relabel, state, transitions)
    agent, agent_metrics = base_learner.update(
      state.agent, base_hyperparams(hyperparams), transitions, key)
    metrics = jax.tree.map(jnp.mean, metrics)
    return state._replace(agent=agent), agent_metrics | metrics

  return base_learner._replace(
    init=init, update=update,
    act=lambda state, hyperparams, observation, memory, key: base_learner.act(
      state.agent, base_hyperparams(hyperparams), normalize(state, observation),
      memory, key),
    act_greedy=lambda state, observation, memory: base_learner.act_greedy(
      state.agent, normalize(state, observation), memory),
    observe=observe, hyperparams=defaults, genotype=genotype,
    from_genotype=from_genotype, declared=declared, share=None,
    supports_n_step=False, stores=base_learner.stores + objective.extras)


def _hyperparams(
  base_learner: base.Learner, own: Mapping[str, Hyperparameter]
) -> tuple[
  types.Hyperparams, dict[str, Hyperparameter],
  Callable[[types.Hyperparams], types.Hyperparams],
]:
  """Puts an objective's hyperparameters and its base learner's together."""
  defaults = {name: value.default for name, value in own.items()}
  of_base, declared = base_learner.hyperparams, base_learner.declared
  # Other kinds of dict, such as OrderedDict, are other pytree types.
  if type(of_base) is not dict or own.keys() & of_base.keys():
    inside = {f"base/{name}": value for name, value in declared.items()}
    together = defaults | {"base": of_base}
    return together, {**own, **inside}, lambda tree: tree["base"]
  return (
    of_base | defaults,
    {**declared, **own},
    lambda tree: {name: tree[name] for name in of_base})
