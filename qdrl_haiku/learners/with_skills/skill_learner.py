"""Wraps a learner so that it learns skills, whatever rewards them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, types
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.check import (
  check_learner_rollout,
  check_learner_update,
)
from qdrl_haiku.learners.hyperparameters import Hyperparameter

TASK_REWARD_WEIGHT = Hyperparameter(
  0.0, "weight of the task's reward, which is added to that of skills"
)
"""The hyperparameter `task_reward_weight`, which every objective has."""


class SkillObjective(NamedTuple):
  """Says what skills are rewarded for, and learns from what it rewards.

  Attributes:
    declared: its hyperparameters, `task_reward_weight` among them.
    state: the type of an agent's states: a NamedTuple of `agent`, the base
      learner's state, `observation_statistics`, and fields of its own.
    genotype: the type of genotypes, likewise.
    init: (key) -> the fields of its own of a new genotype, by name.
    begin: (genotype) -> the fields of a state that a genotype hasn't, such as
      those of optimisers.
    reward: (state, hyperparameters, batch [B, ...] as it was observed, skills
      [B, K]) -> (state that has learned from the batch, rewards [B], metrics).
  """

  declared: Mapping[str, Hyperparameter]
  state: type[types.State]
  genotype: type[types.Tree]
  init: Callable[[types.Key], dict[str, types.Tree]]
  begin: Callable[[types.Tree], dict[str, types.Tree]]
  reward: Callable[
    [types.State, types.Hyperparams, types.Transition, types.Array],
    tuple[types.State, types.Array, types.Metrics],
  ]


def skill_learner(
  base_learner: base.Learner,
  observation_size: int,
  objective: SkillObjective,
  normalize_observations: bool,
) -> base.Learner:
  """Makes a learner that is rewarded for its skills.

  Each batch is rewarded by the objective as it is then, which learns from it,
  and the base learner learns from all batches together. A rollout, of an
  on-policy base learner, is T batches: what all E environments did in one step.
  Observations end with the skill [K], as `environments.SkillEnvironment` makes
  them.

  Its hyperparameters are a dict of those of the base learner (if these aren't
  in a dict, or have the name of one of the objective's, they are one entry of
  it, `base`) and of the objective's.

  Args:
    base_learner: learns to act; made for O + K observations.
    observation_size: O, without the skill.
    objective: what rewards the skills.
    normalize_observations: whether the base learner sees observations
      normalised by running statistics; the skills are left alone.
  """
  defaults, declared, base_hyperparams = _hyperparams(
    base_learner, objective.declared
  )

  def init(key: types.Key) -> types.State:
    agent_key, objective_key = jax.random.split(key)
    genotype = objective.genotype(
      agent=None,
      observation_statistics=statistics.init_statistics(
        observation_size, normalize_observations
      ),
      **objective.init(objective_key),
    )
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
      state.observation_statistics, observation[..., :observation_size]
    )
    skill = observation[..., observation_size:]
    return jnp.concatenate([normalized, skill], axis=-1)

  def observe(state: types.State, observation: types.Array) -> types.State:
    seen = statistics.observe_statistics(
      state, observation[..., :observation_size]
    )
    agent = base_learner.observe(state.agent, normalize(state, observation))
    return seen._replace(agent=agent)

  @eager.compiled_if_eager()
  def update(
    state: types.State,
    hyperparams: types.Hyperparams,
    transitions: types.Transition,
    key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    if base_learner.learns_from == "rollout":
      check_learner_rollout(transitions, hyperparams, defaults)
    else:
      check_learner_update(
        transitions, hyperparams, defaults, base_learner.batches_per_update
      )

    def relabel(
      state: types.State, batch: types.Transition
    ) -> tuple[types.State, tuple[types.Transition, types.Metrics]]:
      skill = batch.observation[..., observation_size:]
      after, intrinsic, metrics = objective.reward(
        state, hyperparams, batch, skill
      )
      batch = batch._replace(
        observation=normalize(state, batch.observation),
        reward=intrinsic + hyperparams["task_reward_weight"] * batch.reward,
        next_observation=normalize(state, batch.next_observation),
      )
      metrics["intrinsic_reward"] = jnp.mean(intrinsic)
      return after, (batch, metrics)

    state, (transitions, metrics) = jax.lax.scan(relabel, state, transitions)
    agent, agent_metrics = base_learner.update(
      state.agent, base_hyperparams(hyperparams), transitions, key
    )
    metrics = jax.tree.map(jnp.mean, metrics)
    return state._replace(agent=agent), agent_metrics | metrics

  return base_learner._replace(
    init=init,
    update=update,
    act=lambda state, hyperparams, observation, key: base_learner.act(
      state.agent,
      base_hyperparams(hyperparams),
      normalize(state, observation),
      key,
    ),
    act_greedy=lambda state, observation: base_learner.act_greedy(
      state.agent, normalize(state, observation)
    ),
    observe=observe,
    hyperparams=defaults,
    genotype=genotype,
    from_genotype=from_genotype,
    declared=declared,
    share=None,
    supports_n_step=False,
  )


def _hyperparams(
  base_learner: base.Learner, own: Mapping[str, Hyperparameter]
) -> tuple[
  types.Hyperparams,
  dict[str, Hyperparameter],
  Callable[[types.Hyperparams], types.Hyperparams],
]:
  """Puts an objective's hyperparameters and its base learner's together."""
  defaults = {name: value.default for name, value in own.items()}
  of_base, declared = base_learner.hyperparams, base_learner.declared
  # Another kind of dict would be another kind of tree.
  if type(of_base) is not dict or own.keys() & of_base.keys():
    inside = {f"base/{name}": value for name, value in declared.items()}
    together = defaults | {"base": of_base}
    return together, {**own, **inside}, lambda tree: tree["base"]
  return (
    of_base | defaults,
    {**declared, **own},
    lambda tree: {name: tree[name] for name in of_base},
  )
