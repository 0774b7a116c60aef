"""Tiny environments and a tiny learner, whose outcomes are known beforehand."""

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, learners, types


class Walk:
  """A point on a line that its actions push; it ends beyond `limit`.

  The observation is the point and the number of steps, the reward the new
  point, and so are the descriptor's two axes. The sine stands for physics, to
  be found in a jaxpr.
  """

  observation_size = 2
  action_size = 1
  descriptor = environments.Descriptor(
    ("x", "steps"), (-10.0, 0.0), (10.0, 100.0))

  def __init__(self, limit=float("inf")):
    self.limit = limit

  def _state(self, x, steps, reward, done):
    obs = jnp.stack([x, steps])
    return environments.State(
      {"x": x, "steps": steps}, obs, reward, done, {}, {"state_descriptor": obs}
    )

  def reset(self, key):
    x = jax.random.uniform(key, minval=-0.5, maxval=0.5)
    return self._state(x, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

  def step(self, state, action):
    x = state.pipeline_state["x"] + jnp.sin(action[0])
    steps = state.pipeline_state["steps"] + 1
    return self._state(x, steps, x, (x > self.limit).astype(jnp.float32))


class Countdown:
  """Counts down to 0 from a number in 1..`longest`, drawn at the reset.

  The observation is the count, the reward of a step the count before it. After
  its end it goes on below 0, where the rewards are not to be counted.
  """

  observation_size = 1
  action_size = 1

  def __init__(self, longest):
    self.longest = longest

  def reset(self, key):
    count = jax.random.randint(key, (1,), 1, self.longest + 1)
    zero = jnp.zeros(())
    return environments.State((), count.astype(jnp.float32), zero, zero)

  def step(self, state, action):
    count = state.obs - 1
    done = (count[0] <= 0).astype(jnp.float32)
    return state.replace(obs=count, reward=state.obs[0], done=done)


def linear_learner():
  """A learner with one action, clip(offset + gain * observation[0], -1, 1).

  The state has the offset and the gain; `act` adds normal noise of scale
  `noise`, the one hyperparameter. It learns nothing.
  """

  def act_greedy(state, observation, memory):
    action = state["offset"] + state["gain"] * observation[..., :1]
    return types.Acted(jnp.clip(action, -1.0, 1.0), memory)

  def act(state, hyperparams, observation, memory, key):
    action = act_greedy(state, observation, memory).action
    noise = hyperparams["noise"] * jax.random.normal(key, action.shape)
    return types.Acted(jnp.clip(action + noise, -1.0, 1.0), memory)

  return learners.Learner(
    init=lambda key: {"offset": jax.random.uniform(key), "gain": jnp.ones(())},
    update=lambda state, hyperparams, transitions, key: (state, {}), act=act,
    act_greedy=act_greedy, observe=lambda state, observation: state,
    hyperparams={"noise": 0.1}, batches_per_update=1,
    genotype=lambda state: state, from_genotype=lambda genotype: genotype)
