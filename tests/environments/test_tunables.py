"""Tests of what an environment declares to be tuned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, skills
from qdrl_haiku.environments import hiding, sparse_maze

_ACTION = jnp.full((2, 3, 2), 0.7)


class Weighed:
  """Observes a place, which moves by the first action times its speed."""

  observation_size, action_size = 2, 2
  tunables = {
    "bonus": environments.Hyperparameter(0.5, "added to each reward"),
    "speed": environments.Hyperparameter(1.0, "of its moves", high=4.0)}

  def reset(self, key):
    zero = jnp.zeros(())
    return environments.State((), jax.random.uniform(key, (2,)), zero, zero)

  def step(self, state, action, tunables):
    obs = state.obs + tunables["speed"] * action
    return state.replace(obs=obs, reward=jnp.sum(action) + tunables["bonus"])


def _stepped(env, tunables=None):
  """The states of [2, 3] instances before and after one step."""
  state = env.reset(jax.random.split(jax.random.key(0), (2, 3)))
  return state, env.step(state, _ACTION, None, tunables or {})


def test_each_instance_has_its_own_values_and_evaluation_the_defaults():
  env = environments.Environment(Weighed(), episode_length=5)
  speed = jnp.array([[1.0], [3.0]])
  before, after = _stepped(env, {"speed": speed})
  moved = (after.obs - before.obs) / speed[..., None]
  np.testing.assert_allclose(moved, 0.7, rtol=1e-5)
  # The other one keeps its default.
  np.testing.assert_allclose(after.reward, 1.9, rtol=1e-6)
  for by_default in (env.advance(before, _ACTION), _stepped(env)[1]):
    np.testing.assert_allclose(by_default.obs - before.obs, 0.7, rtol=1e-5)
  _, after = _stepped(env, {"bonus": jnp.array([[0.0], [1.0]])})
  np.testing.assert_allclose(after.reward[:, 0], [1.4, 2.4], rtol=1e-6)
  with pytest.raises(ValueError, match="tunables=sped .* has bonus, speed;"):
    _stepped(env, {"sped": 1.0})


@pytest.mark.parametrize("wrap", [
  lambda env: hiding.Hidden(env, ["1"], "weighed"),
  lambda env: environments.with_descriptor(
    env, lambda state: state.obs,
    environments.Descriptor(("x", "y"), (0.0, 0.0), (1.0, 1.0))),
  lambda env: environments.create(
    env, randomize=["action_noise:fixed:0"]).unwrapped])
def test_wrappers_pass_them_on(wrap):
  env = environments.Environment(wrap(Weighed()), episode_length=5)
  assert env.tunables.keys() == {"bonus", "speed"}
  with_skills = environments.SkillEnvironment(
    env, skills.categorical(2), "episode")
  for each in (env, with_skills):
    _, after = _stepped(each, {"bonus": jnp.array([[0.0], [1.0]])})
    np.testing.assert_allclose(after.reward[:, 0], [1.4, 2.4], rtol=1e-6)


@pytest.mark.parametrize(("changes", "message"), [
  ({"tunables": {"bonus": 0.5}},
   r"tunables\['bonus'\]=0.5 is no environments.Hyperparameter"),
  ({"tunables": {"bonus": environments.Hyperparameter(-0.5, "a weight")}},
   "default=-0.5, which makes no sense; give .* number from 0 on"),
  ({"tunables": {"a:b": environments.Hyperparameter(0.5, "a weight")}},
   "'a:b'.*have a colon; rename it"),
  ({"step": lambda state, action: state},
   "its step takes no third argument; let it take .state, action, tunables")])
def test_what_is_declared_wrongly_is_refused_in_a_line(changes, message):
  env = Weighed()
  vars(env).update(changes)
  with pytest.raises(ValueError, match=message):
    environments.Environment(env, episode_length=5)


def test_the_sparse_maze_pays_at_the_goal_alone_unless_it_is_shaped():
  maze = sparse_maze.SparseMaze("maze")

  def paid(place, action, **weights):
    state = maze._state(jnp.array(place), jnp.zeros(()))
    return float(maze.step(state, jnp.array(action), weights).reward)

  assert paid((0.65, 0.8), (1.0, 0.0)) == 1.0
  assert paid((0.55, 0.8), (1.0, 0.0)) == 0.0
  down = (0.0, 0.5), (0.0, -1.0)
  assert paid(*down) == 0.0
  # Before the second wall the way leads away from the goal.
  assert paid(*down, progress=1.0) == pytest.approx(1.0, abs=0.1)
  assert paid(*down, nearness=1.0) == pytest.approx(0.0, abs=1e-5)
  assert paid((0.0, -0.1), (0.0, -1.0), nearness=2.0) == pytest.approx(-2.0)
  assert paid(*down, moving=0.5) == pytest.approx(0.5, abs=1e-5)
