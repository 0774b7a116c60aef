"""Networks, policies, gradients and Adam in float64 NumPy."""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special

_STEP = 1e-5


def float64(tree):
  """A tree with float64 leaves (and Adam's counts as integers)."""
  return jax.tree.map(
    lambda x: np.asarray(x, np.float64 if x.dtype == np.float32 else None), tree
  )


def mlp(params, inputs, act=np.tanh):
  """A perceptron, perhaps of residual blocks: [..., I] -> [..., outputs].

  A recurrent one is of `Steps`.
  """
  if "memory" in params:
    # Gates are of as many numbers as the GRU's memory, or half the LSTM's.
    size = inputs.memory.shape[-1] // (1 + ("lstm/linear" in params["memory"]))
    return mlp(params["network"], inputs.encoded(params["memory"], size), act)
  layers = {name.rpartition("/")[2]: x for name, x in params.items()}

  def linear(name, x):
    return x @ layers[name]["w"] + layers[name]["b"]

  def norm(i, x):
    if f"layer_norm_{i}" not in layers:
      return x
    learned = layers[f"layer_norm_{i}"]
    x = x - x.mean(axis=-1, keepdims=True)
    variance = (x**2).mean(axis=-1, keepdims=True)
    return x / np.sqrt(variance + 1e-5) * learned["scale"] + learned["offset"]

  i = 0
  if "expand_0" in layers:
    inputs = linear("linear_0", inputs)
    while f"expand_{i}" in layers:
      expanded = act(linear(f"expand_{i}", norm(i, inputs)))
      inputs = inputs + linear(f"project_{i}", expanded)
      i += 1
    return linear("output", norm(i, inputs))
  while f"linear_{i}" in layers:
    inputs = act(norm(i, linear(f"linear_{i}", inputs)))
    i += 1
  return linear("output", inputs)


def remember(params, observation, memory):
  """The memory of Haiku's GRU or LSTM after an observation."""
  (own,) = params.values()
  if "w_h" in own:
    size = len(own["w_h"])
    x = observation @ own["w_i"] + own["b"]
    z, r = np.split(special.expit(
      (x + memory @ own["w_h"])[..., : 2 * size]), 2, axis=-1)
    new = np.tanh(x + (r * memory) @ own["w_h"])[..., 2 * size :]
    return (1 - z) * memory + z * new
  hidden, cell = np.split(memory, 2, axis=-1)
  seen = np.concatenate([observation, hidden], axis=-1)
  i, g, f, o = np.split(seen @ own["w"] + own["b"], 4, axis=-1)
  cell = cell * special.expit(f + 1) + special.expit(i) * np.tanh(g)
  return np.concatenate([special.expit(o) * np.tanh(cell), cell], axis=-1)


class Steps(NamedTuple):
  """Steps [B, L] as recurrent networks see them, one row after the other.

  Or, with `beyond`, the observations that follow these; and perhaps actions.
  """

  observation: Any
  begins: Any
  memory: Any  # Of one network, or by network.
  beyond: Any = None
  action: Any = None

  def encoded(self, params, size):
    """What the network sees of each step, [B * L, ...]."""
    rows = []
    for b, t in np.ndindex(self.begins.shape):
      memory = self.memory[b, t] if self.begins[b, t] else memory  # noqa: F821
      memory = remember(params, self.observation[b, t], memory)
      seen, output = self.observation[b, t], memory
      if self.beyond is not None:
        seen = self.beyond[b, t]
        output = remember(params, seen, memory)
      rows.append(np.concatenate([seen, output[:size]]))
    return np.array(rows) if self.action is None else np.concatenate(
      [rows, self.action], axis=-1)


def sequences(transitions):
  """Transitions [B, L] of a recurrent agent, flat but for observations."""
  ends = (transitions.discount == 0) | (transitions.extras["truncation"] > 0)
  begins = np.ones_like(ends)
  begins[:, 1:] = ends[:, :-1]
  steps = Steps(transitions.observation, begins, transitions.extras["memory"])
  flat = jax.tree.map(
    lambda x: x.reshape(-1, *x.shape[2:]), transitions._replace(extras={}))
  return flat._replace(
    observation=steps,
    next_observation=steps._replace(beyond=transitions.next_observation))


def seen_by(role, observation, action=None):
  """What a network sees of observations, and perhaps of actions."""
  if isinstance(observation, Steps):
    return observation._replace(
      memory=observation.memory[role], action=action)
  if action is None:
    return observation
  return np.concatenate([observation, action], axis=-1)


def normal_tanh(parameters, noise):
  """The actions [..., A] of a noise, and their log-probabilities [...]."""
  loc, raw_scale = np.split(parameters, 2, axis=-1)
  scale = np.log1p(np.exp(raw_scale)) + 1e-3
  x = loc + scale * noise
  log_prob = -0.5 * noise**2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
  log_prob -= np.log(1 - np.tanh(x) ** 2)
  return np.tanh(x), log_prob.sum(axis=-1)


def normalize(statistics, observation):
  """Observations as the networks see them."""
  if statistics is None:
    return observation
  _, mean, variance = statistics
  std = np.sqrt(variance)
  return np.clip((observation - mean) / std, -10, 10)


def gradient(function, tree):
  """The gradient of a function of a tree, by central differences."""
  leaves, structure = jax.tree.flatten(jax.tree.map(np.array, tree))
  gradients = [np.zeros(np.shape(x)) for x in leaves]
  for leaf, slopes in zip(leaves, gradients, strict=True):
    for i in np.ndindex(np.shape(leaf)):
      value = leaf[i]
      leaf[i] = value + _STEP
      above = function(structure.unflatten(leaves))
      leaf[i] = value - _STEP
      below = function(structure.unflatten(leaves))
      leaf[i] = value
      slopes[i] = (above - below) / (2 * _STEP)
  return structure.unflatten(gradients)


def adam(gradients, state, params, learning_rate, b1=0.9, decay=0.0):
  """Adam, algorithm 1 of Kingma and Ba, arXiv 1412.6980; AdamW with a decay."""
  count = state.count + 1
  mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
  nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, state.nu, gradients)
  params = jax.tree.map(
    lambda p, m, v: p - learning_rate * (
      m / (1 - b1**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
      + decay * p),
    params, mu, nu)
  return params, type(state)(count, mu, nu)


def descend(
  loss, params, state, learning_rate, b1=0.9, decay=0.0, max_norm=np.inf
):
  """Returns what Adam's step makes, the loss, and the length of its slope."""
  gradients = gradient(loss, params)
  length = np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(gradients)))
  shorter = min(1, max_norm / length)
  gradients = jax.tree.map(lambda x: shorter * x, gradients)
  after = adam(gradients, state, params, learning_rate, b1, decay)
  return *after, loss(params), length


def advantages(reward, discount, truncation, value, next_value, lambda_):
  """Generalised advantages: discounted errors up to an episode's end, [T]."""
  errors = reward + discount * next_value - value
  found = np.zeros(len(reward))
  for t in range(len(reward)):
    weight = 1.0
    for i in range(t, len(reward)):
      found[t] += weight * errors[i]
      if truncation[i] or not discount[i]:
        break
      weight *= discount[i] * lambda_
  return found
