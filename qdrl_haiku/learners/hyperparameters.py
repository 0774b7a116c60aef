"""Declares hyperparameters, here those that several learners share.

A hyperparameter is declared once, beside its learner: flags, checks, `--help`
and the default search range follow from the declaration.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp

from qdrl_haiku import ranges, specs, types
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.base import Learner

_FIRST_DISTANCE = 0.05

# Of the values tried, SAC learns most over brax's robots with these defaults,
# see launchers/RESULTS.md. The search ranges are 0.6 to 1.6 times the defaults:
# from farther away small populations don't recover within most runs' steps.
COMMON: dict[str, Hyperparameter] = {
  "discount": Hyperparameter(
    0.995,
    "discount factor per step; by default a launcher takes 1 - 5 / T for "
    "episodes of T steps, at least 0.95 and at most this",
    high=1.0, search=ranges.OneMinusLogUniform(0.992, 0.997)),
  "tau": Hyperparameter(
    0.01,
    "share by which target networks move to the online ones after each critic "
    "step, of td3 after each round of --policy_delay steps",
    high=1.0, excludes_low=True),
  "policy_learning_rate": Hyperparameter(
    3e-4, "Adam's learning rate for the policy",
    search=ranges.LogUniform(2e-4, 5e-4)),
  "critic_learning_rate": Hyperparameter(
    2e-3, "Adam's learning rate for the critics",
    search=ranges.LogUniform(1.2e-3, 3.2e-3)),
  "temperature_learning_rate": Hyperparameter(
    1e-3, "Adam's learning rate for SAC's temperature",
    search=ranges.LogUniform(6e-4, 1.6e-3)),
  "target_entropy": Hyperparameter(
    None,
    "SAC's target entropy, in nats; by default -A / 2 for actions of A "
    "numbers, 0.5 log(n) for one of n",
    low=-math.inf),
  "reward_scaling": Hyperparameter(
    1.0, "factor that rewards are multiplied by",
    search=ranges.LogUniform(0.6, 1.6), excludes_low=True),
  "weight_decay": Hyperparameter(
    0.01,
    "weight decay, in units of the learning rate, of all networks of an agent "
    "whose policy or critics are residual")}
"""Hyperparameters that several learners share, by name."""
OF_TEMPERATURES = ("temperature_learning_rate", "target_entropy")
"""Those that a learned temperature has."""


def common_hyperparameters_without(*names: str) -> dict[str, Hyperparameter]:
  """Returns the hyperparameters that learners share, but for given names."""
  return {name: x for name, x in COMMON.items() if name not in names}


def default_hyperparameters(
  declared: Mapping[str, Hyperparameter], action_size: int | specs.Action
) -> dict[str, float]:
  """Returns the values that hyperparameters have by default, by name."""
  action = specs.action_spec(action_size)
  # Half of what Haarnoja et al. (arXiv 1812.05905) take: agents that explore
  # more learn more within few steps.
  entropy = -action.size / 2
  if isinstance(action, specs.Discrete):
    # Christodoulou (arXiv 1910.07207) takes 0.98 log(n), nearly uniform.
    entropy = 0.5 * math.log(action.size)
  return {
    name: entropy if value.default is None else value.default
    for name, value in declared.items()}


def declare_discount(default: float) -> Hyperparameter:
  """Declares a discount, searched from 0.6 to 1.6 times its distance from 1."""
  low, high = (round(1 - x * (1 - default), 6) for x in (1.6, 0.6))
  return dataclasses.replace(
    COMMON["discount"], default=default,
    search=ranges.OneMinusLogUniform(low, high))


def discount_for_episodes(num_steps: int, largest: float) -> Hyperparameter:
  """Declares a discount whose horizon suits the length of episodes.

  1 - 5 / T, within bounds (Hansen et al., "TD-MPC2", arXiv 2310.16828, appendix
  H): in short episodes a longer horizon makes values harder to learn, and tells
  actions apart less.

  Args:
    num_steps: T, of an episode, >= 1.
    largest: the discount in long episodes, of 1,000 steps or so, < 1.

  Returns:
    The discount, at least 0.95.
  """
  return declare_discount(min(max(1 - 5 / num_steps, 0.95), largest))


def with_growing_discount(learner: Learner, num_steps: int) -> Learner:
  """Returns a learner whose discount grows to its value, from 0.95 or less.

  Values of a short horizon are learned soon, and those of a longer one from
  them (François-Lavet et al., arXiv 1512.02011). In between 1 - discount falls
  geometrically.

  Args:
    learner: has a hyperparameter `discount`, and states with
      `policy_optimizer_state`, Adam's.
    num_steps: critic steps after which the discount has its value, >= 1.
  """

  def update(
    state: types.State, hyperparams: types.Hyperparams,
    transitions: types.Transition, key: types.Key,
  ) -> tuple[types.State, types.Metrics]:
    count = state.policy_optimizer_state.count * learner.batches_per_update
    share = jnp.minimum(count / num_steps, 1.0)
    distance = 1 - hyperparams["discount"]
    first = jnp.maximum(distance, _FIRST_DISTANCE)
    discount = 1 - first ** (1 - share) * distance ** share
    state, metrics = learner.update(
      state, hyperparams | {"discount": discount}, transitions, key)
    return state, metrics | {"discount": discount}

  # Rewards of several steps are summed before, by the discount's value.
  return learner._replace(update=update, supports_n_step=False)
