"""METRA, skills that go far (Park et al., arXiv 2310.08887)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, networks, skills, types
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.hyperparameters import Hyperparameter
from qdrl_haiku.learners.with_skills.skill_learner import (
  TASK_REWARD_WEIGHT,
  SkillObjective,
  skill_learner,
)

HYPERPARAMETERS = {
  "representation_learning_rate": Hyperparameter(
    3e-4, "Adam's learning rate for METRA's representation"
  ),
  "multiplier_learning_rate": Hyperparameter(
    3e-4, "Adam's learning rate for METRA's multiplier, lambda"
  ),
  "constraint_slack": Hyperparameter(
    1e-3, "most that a short step counts for METRA's constraint, epsilon"
  ),
  "task_reward_weight": TASK_REWARD_WEIGHT,
}
"""METRA's, by name, beside those of the learner that it wraps."""


@dataclasses.dataclass(frozen=True)
class METRAConfig(Settings):
  """Shapes METRA's representation and its computation."""

  title = "Skills"

  representation_hidden_layer_sizes: tuple[int, ...] = setting(
    (256, 256), "Widths of the representation's hidden layers.", low=1
  )
  activation: str = setting(
    "relu", "Activation of the representation, see `NetworkConfig`.", flag=""
  )
  initial_multiplier: float = setting(
    30.0, "Lambda at first.", low=1e-30, high=1e30
  )
  normalize_observations: bool = setting(
    False,
    "Whether the agent and the representation see observations normalised by "
    "running statistics.",
    flag="",
  )


class METRAState(NamedTuple):
  """One METRA agent.

  Attributes:
    agent: the base learner's state.
    representation_params: of phi.
    log_multiplier: [], log lambda.
    representation_optimizer_state: Adam's moments for phi.
    multiplier_optimizer_state: Adam's moments for log lambda.
    observation_statistics: of the O numbers of an observation that are no
      skill, or None.
  """

  agent: types.State
  representation_params: types.Params
  log_multiplier: types.Array
  representation_optimizer_state: types.State
  multiplier_optimizer_state: types.State
  observation_statistics: statistics.ObservationStatistics | None


class METRAGenotype(NamedTuple):
  """Holds what a repertoire stores of a METRA agent; see `METRAState`."""

  agent: types.Tree
  representation_params: types.Params
  log_multiplier: types.Array
  observation_statistics: statistics.ObservationStatistics | None


def metra(
  base_learner: base.Learner,
  observation_size: int,
  prior: skills.SkillPrior,
  config: METRAConfig = METRAConfig(),
) -> base.Learner:
  """Learns skills that lead far apart, by a distance that it learns.

  A representation phi of states is trained to move along the skill z, at most
  by 1 in a step, which a multiplier enforces; the base learner is rewarded with
  (phi(s') - phi(s)) . z. Discrete skills are centred: (K onehot - 1) / (K - 1).
  See `skill_learner`.

  Args:
    base_learner: learns to act; made for O + K observations.
    observation_size: O, without the skill.
    prior: what skills are drawn from: directions (`skills.sphere`), or discrete
      ones.
    config: what shapes the representation and the computation.

  Returns:
    The learner; its state is a `METRAState`, its genotype a `METRAGenotype`.
  """
  network = networks.make_discriminator(
    observation_size,
    prior.size,
    config.representation_hidden_layer_sizes,
    activation=config.activation,
  )
  optimizer = base.Optimizer()

  def init(key: types.Key) -> dict[str, types.Tree]:
    multiplier = jnp.asarray(config.initial_multiplier, jnp.float32)
    return {
      "representation_params": network.init(key),
      "log_multiplier": jnp.log(multiplier),
    }

  def begin(genotype: METRAGenotype) -> dict[str, types.Tree]:
    return {
      "representation_optimizer_state": optimizer.init(
        genotype.representation_params
      ),
      "multiplier_optimizer_state": optimizer.init(genotype.log_multiplier),
    }

  def reward(
    state: METRAState,
    hyperparams: types.Hyperparams,
    batch: types.Transition,
    skill: types.Array,
  ) -> tuple[METRAState, types.Array, types.Metrics]:
    seen = tuple(
      statistics.normalize_by_statistics(
        state.observation_statistics, x[..., :observation_size]
      )
      for x in (batch.observation, batch.next_observation)
    )
    if prior.num_skills is not None:
      skill = (prior.num_skills * skill - 1) / (prior.num_skills - 1)
    slack = jnp.asarray(hyperparams["constraint_slack"], jnp.float32)
    multiplier = jnp.exp(state.log_multiplier)

    def loss_fn(params: types.Params) -> base.LossAndMore:
      phi, next_phi = (network.apply(params, x) for x in seen)
      loss = jax.vmap(
        losses.metra_representation_loss, in_axes=(0, 0, 0, None, None)
      )(phi, next_phi, skill, multiplier, slack)
      return jnp.mean(loss), ((phi, next_phi), params)

    descent = optimizer.descend(
      loss_fn,
      state.representation_params,
      state.representation_optimizer_state,
      hyperparams["representation_learning_rate"],
    )
    phi, next_phi = descent.more
    room = jnp.mean(
      jax.vmap(losses.metra_slack, in_axes=(0, 0, None))(phi, next_phi, slack)
    )
    gradient = jax.grad(losses.metra_multiplier_loss)(
      state.log_multiplier, room
    )
    log_multiplier, multiplier_optimizer_state = optimizer.update(
      gradient,
      state.multiplier_optimizer_state,
      state.log_multiplier,
      hyperparams["multiplier_learning_rate"],
    )
    state = state._replace(
      representation_params=descent.params,
      representation_optimizer_state=descent.optimizer_state,
      log_multiplier=log_multiplier,
      multiplier_optimizer_state=multiplier_optimizer_state,
    )
    return state, jax.vmap(losses.metra_reward)(phi, next_phi, skill), {
      "representation_loss": descent.loss,
      "constraint_slack": room,
      "multiplier": multiplier,
      "gradient_norm/representation": descent.gradient_norm,
    }

  objective = SkillObjective(
    HYPERPARAMETERS, METRAState, METRAGenotype, init, begin, reward
  )
  return skill_learner(
    base_learner, observation_size, objective, config.normalize_observations
  )
