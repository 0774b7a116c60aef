"""A user's own module, written where the package and its tests are not."""

import contextlib
import sys

import pytest

SOURCE = '''
import jax
import jax.numpy as jnp

from qdrl_haiku import environments, learners, types


class Line:
  """A point that its action moves; the reward is nearness of both to 1/2."""

  observation_size = 1
  action_size = 1

  def reset(self, key):
    point = jax.random.uniform(key, (1,))
    return environments.State(point, point, jnp.zeros(()), jnp.zeros(()))

  def step(self, state, action):
    point = jnp.clip(state.obs + 0.1 * action, -1.0, 1.0)
    return state.replace(
      pipeline_state=point, obs=point, reward=-jnp.sum((action - 0.5) ** 2)
    )


def make_env():
  return Line()


def make_learner(observation_size, action_size):
  """Its state is a vector, its action, which it moves at `speed`."""

  def act_greedy(state, observation, memory):
    return types.Acted(
      jnp.broadcast_to(state, (*observation.shape[:-1], action_size)))

  def update(state, hyperparams, transitions, key):
    step = hyperparams["speed"] * (0.5 - state)
    return state + step, {"distance": jnp.abs(0.5 - state[0])}

  return learners.Learner(
    init=lambda key: jax.random.uniform(key, (action_size,), minval=-1.0),
    update=update,
    act=lambda state, hyperparams, observation, memory, key: act_greedy(
      state, observation, memory),
    act_greedy=act_greedy,
    observe=lambda state, observation: state,
    hyperparams={"speed": 0.003},
    declared={"speed": learners.Hyperparameter(0.003, "how fast", high=1.0)},
    batches_per_update=1,
    genotype=lambda state: state,
    from_genotype=lambda genotype: genotype,
  )
'''


def write(folder):
  """Writes package `users_own` with module `things` into a folder."""
  package = folder / "users_own"
  package.mkdir()
  (package / "__init__.py").write_text("")
  (package / "things.py").write_text(SOURCE)


@contextlib.contextmanager
def written(folder):
  """Writes it into a folder, which is the current one for a while."""
  write(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    yield folder
  for name in ("users_own", "users_own.things"):
    sys.modules.pop(name, None)


FLAGS = (
  "--env_name=users_own.things:make_env",
  "--learner=users_own.things:make_learner", "--episode_length=10",
  "--num_envs=2", "--batch_size=4", "--min_replay_size=4",
  "--replay_capacity=100", "--num_eval_episodes=2")
