"""Wraps a learner so that it learns skills, whatever rewards them."""

from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec

import jax
import jax.numpy as jnp

from qdrl_haiku import eager, specs, types
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.check import (
  check_learner_rollout,
  check_learner_update,
)
from qdrl_haiku.learners.with_skills.objective import (
  ADAM,
  SkillGenotype,
  SkillObjective,
  SkillState,
  SkillSteps,
)

_P = ParamSpec("_P")


def skill_learner(
  base_learner: base.Learner, observation_size: int | specs.Observation,
  objective: SkillObjective,
) -> base.Learner:
  """Makes a learner that is rewarded for its skills.

  Batch after batch the objective computes rewards, then learns from the batch;
  after that the base learner learns from all batches together. A rollout of an
  on-policy base learner is T batches, each one step of all E environments: T
  networks in turn reward it, each having learned from the step before.
  Observations are those of `environments.SkillEnvironment`, with a skill [K].

  Its hyperparameters are one dict, of the base learner's and the objective's.
  If the base learner's are no dict, or share a name with the objective's, they
  become the entry `base` of it.

  Args:
    base_learner: learns to act; made for O + K observations.
    observation_size: O, without the skill, or the spec of observations.
    objective: what rewards the skills.

  Returns:
    The learner; its state is a `SkillState`, its genotype a `SkillGenotype`.

  Raises:
    ValueError: if the base learner learns from sequences.
  """
  if base_learner.learns_from == "sequences":
    raise ValueError(
      "a recurrent base learner learns from sequences, and skills reward "
      "single steps; take base_learner=ppo, or memory=window:K.")
  defaults, declared, base_hyperparams = _hyperparams(
    base_learner, objective.declared)
  whole = specs.Extended(
    specs.observation_spec(observation_size), "skill", objective.prior.size)

  def init(key: types.Key) -> SkillState:
    agent_key, objective_key = jax.random.split(key)
    return begin(
      base_learner.init(agent_key), objective.init(objective_key),
      statistics.init_statistics(observation_size, objective.normalizes))

  def begin(
    agent: types.State, learned: dict[str, types.Tree],
    seen: statistics.ObservationStatistics | None,
  ) -> SkillState:
    optimizers = {x: ADAM.init(learned[x]) for x in objective.descended}
    return SkillState(agent, learned, optimizers, seen)

  def genotype(state: SkillState) -> SkillGenotype:
    return SkillGenotype(
      base_learner.genotype(state.agent), state.learned,
      state.observation_statistics)

  def from_genotype(genotype: SkillGenotype) -> SkillState:
    agent = base_learner.from_genotype(genotype.agent)
    return begin(agent, *genotype[1:])

  def normalize(state: SkillState, observation: types.Tree) -> types.Tree:
    if state.observation_statistics is None:
      return observation
    seen, skill = whole.split(observation)
    return whole.join(
      statistics.normalize_by_statistics(state.observation_statistics, seen),
      skill)

  def observe(state: SkillState, observation: types.Tree) -> SkillState:
    seen = statistics.observe_statistics(state, whole.split(observation)[0])
    agent = base_learner.observe(state.agent, normalize(state, observation))
    return seen._replace(agent=agent)

  @eager.compiled_if_eager()
  def update(
    state: SkillState, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[SkillState, types.Metrics]:
    if base_learner.learns_from == "rollout":
      check_learner_rollout(transitions, hyperparams, defaults)
    else:
      check_learner_update(
        transitions, hyperparams, defaults, base_learner.batches_per_update)

    def relabel(
      state: SkillState, batch: types.Transition
    ) -> tuple[SkillState, tuple[types.Transition, types.Metrics]]:
      observation, skill = whole.split(batch.observation)
      steps = SkillSteps(
        observation, whole.split(batch.next_observation)[0], skill,
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

  def policy(state: SkillState) -> base.PolicyParts:
    assert base_learner.policy is not None
    parts = base_learner.policy(state.agent)
    seen = state.observation_statistics
    return parts if seen is None else parts._replace(statistics=seen)

  return base_learner._replace(
    init=init, update=update,
    act=lambda state, hyperparams, observation, memory, key: base_learner.act(
      state.agent, base_hyperparams(hyperparams), normalize(state, observation),
      memory, key),
    act_greedy=lambda state, observation, memory: base_learner.act_greedy(
      state.agent, normalize(state, observation), memory),
    observe=observe, hyperparams=defaults, genotype=genotype,
    from_genotype=from_genotype, declared=declared, share=None,
    policy=base_learner.policy and policy,
    supports_n_step=False, stores=base_learner.stores + objective.extras)


def learner_of_objective(
  make_objective: Callable[
    Concatenate[int | specs.Observation, _P], SkillObjective],
) -> Callable[
  Concatenate[base.Learner, int | specs.Observation, _P], base.Learner
]:
  """Returns a function that wraps a base learner in an objective.

  Args:
    make_objective: (observation_size, ...) -> the objective.

  Returns:
    (base learner, made for O + K observations, observation_size, ...) -> the
    learner, see `skill_learner`.
  """

  def make(
    base_learner: base.Learner, observation_size: int | specs.Observation,
    *args: _P.args, **more: _P.kwargs,
  ) -> base.Learner:
    objective = make_objective(observation_size, *args, **more)
    return skill_learner(base_learner, observation_size, objective)

  return make


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
    of_base | defaults, {**declared, **own},
    lambda tree: {name: tree[name] for name in of_base})
