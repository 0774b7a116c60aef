"""A describer that improves once: it finds the two directions that vary."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import environments, learners, map_elites, training

_KEY, _SIZE = jax.random.key(0), 6
_MIXES = jax.random.normal(jax.random.key(7), (2, _SIZE))


class Mixed:
  """Shows 6 numbers, which are mixed of an action of two."""

  observation_size, action_size = _SIZE, 2

  def reset(self, key):
    nothing = jnp.zeros(())
    return environments.State((), jnp.ones(_SIZE), nothing, nothing)

  def step(self, state, action):
    return state.replace(obs=action @ _MIXES, reward=-jnp.sum(action**2))


def improve(state, repertoire, key):
  """Takes the principal axes of what elites have seen, at the third call."""
  seen = repertoire.extras["episodes"][:, 0]
  weights = repertoire.occupied[:, None]
  seen = weights * (seen - jnp.sum(weights * seen, 0) / jnp.sum(weights))
  _, sizes, axes = jnp.linalg.svd(seen, full_matrices=False)
  scale = sizes[:2, None] / jnp.sqrt(jnp.sum(weights))
  improves = state["calls"] == 2
  axes = jnp.where(improves, axes[:2] / (2 * scale), state["axes"])
  return {"axes": axes, "calls": state["calls"] + 1}, improves


def test_elites_are_placed_anew_by_what_has_been_learned():
  describer = map_elites.Describer(
    init=lambda key: {"axes": 0.1 * jnp.eye(2, _SIZE), "calls": jnp.int32(0)},
    look=lambda state: state.info["next_observation"],
    summarize=lambda looks, mask: looks[jnp.sum(mask) - 1],
    describe=lambda state, seen: state["axes"] @ seen, improve=improve)
  env = environments.Environment(Mixed(), episode_length=1)
  setup = training.Setup(
    env, env, learners.td3(_SIZE, 2), None, training.TrainingConfig(
      num_eval_episodes=1), map_elites=training.MapElites(
        "ga", map_elites.cells(map_elites.Grid((8, 8), (-1, -1), (1, 1))),
        map_elites.vary_elites(0.03, 0.0, lambda key, x: x), 64, 64,
        describer=describer))
  state, cells = training.init(setup, _KEY), []
  for _ in range(8):
    state, _ = training.step(setup, state, _KEY)
    cells.append(int(state.repertoire.occupied.sum()))
  assert cells[1] == 4 and cells[7] > 3 * cells[1], cells
  found = state.repertoire.occupied
  np.testing.assert_allclose(
    state.repertoire.descriptors[found], (
      state.repertoire.extras["episodes"][found, 0] @ state.describer["axes"].T
    ), rtol=1e-4, atol=1e-5)
