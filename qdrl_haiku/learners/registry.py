"""Learners by name, as configurations choose them."""

from collections.abc import Callable

from qdrl_haiku import specs
from qdrl_haiku.config import Settings, UsersOwn
from qdrl_haiku.learners.base import Learner
from qdrl_haiku.learners.config import AgentConfig
from qdrl_haiku.learners.dqn import DQNConfig, dqn
from qdrl_haiku.learners.hyperparameters import discount_for_episodes
from qdrl_haiku.learners.ppo import PPOConfig, ppo
from qdrl_haiku.learners.pqn import PQNConfig, pqn
from qdrl_haiku.learners.sac import SACConfig, sac
from qdrl_haiku.learners.td3 import TD3Config, td3
from qdrl_haiku.learners.with_batch_norm.crossq import CrossQConfig, crossq
from qdrl_haiku.learners.with_batch_norm.xqc import XQCConfig, xqc

BASES: dict[str, AgentConfig] = {
  "sac": SACConfig(), "td3": TD3Config(), "crossq": CrossQConfig(),
  "xqc": XQCConfig(), "ppo": PPOConfig(), "dqn": DQNConfig(),
  "pqn": PQNConfig()}
"""The configurations of all learners without skills, by name."""
_LEARNERS: dict[type[Settings], Callable[..., Learner]] = {
  SACConfig: sac, TD3Config: td3, CrossQConfig: crossq, XQCConfig: xqc,
  PPOConfig: ppo, DQNConfig: dqn, PQNConfig: pqn}


def make_learner(
  config: Settings, observation_size: int | specs.Observation,
  action_size: int | specs.Action, episode_length: int = 1000,
) -> Learner:
  """Makes the learner, without skills, that a configuration describes.

  Args:
    config: of one of `BASES`, or a user's own function of the two sizes, which
      it gets as numbers where numbers stand for the specs.
    observation_size: O, >= 1, or the spec of observations.
    action_size: A, >= 1, or the spec of actions.
    episode_length: of the environment, >= 1, by which the default discount
      goes; a user's own learner has its own.

  Returns:
    The learner.

  Raises:
    ValueError: if a user's function makes something else.
  """
  if isinstance(config, UsersOwn):
    return config.call(
      "learner", Learner,
      observation_size=specs.number_if_flat(observation_size),
      action_size=specs.number_if_flat(action_size))
  learner = _LEARNERS[type(config)](observation_size, action_size, config)
  largest = learner.hyperparams["discount"]
  discount = discount_for_episodes(episode_length, largest)
  return learner._replace(
    hyperparams={**learner.hyperparams, "discount": discount.default},
    declared={**learner.declared, "discount": discount})
