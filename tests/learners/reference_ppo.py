"""PPO's update in float64 NumPy, see `reference_updates`."""

import operator

import jax
import numpy as np
from scipy import special

from tests.learners.reference import (
  advantages,
  descend,
  float64,
  mlp,
  normal_tanh,
  normalize,
  seen_by,
  sequences,
)


def _log_prob(params, observation, action):
  """Of actions [..., A], or discrete ones [...], by a policy, [...]."""
  outputs = mlp(params, seen_by("policy", observation))
  if action.dtype == np.int32:
    logs = special.log_softmax(outputs, axis=-1)
    return np.take_along_axis(logs, action[..., None], axis=-1)[..., 0]
  loc, raw_scale = np.split(outputs, 2, axis=-1)
  noise = (np.arctanh(action) - loc) / (np.log1p(np.exp(raw_scale)) + 1e-3)
  return normal_tanh(outputs, noise)[1]


def _step(state, hyperparams, steps, noise):
  """The state after a step on one minibatch, and metrics."""
  observation, action, old, advantage, target = steps
  advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
  epsilon, before = hyperparams["clip_epsilon"], state.policy_params
  is_discrete = action.dtype == np.int32

  def entropy(params):
    outputs = mlp(params, seen_by("policy", observation))
    if is_discrete:
      return special.entr(special.softmax(outputs, axis=-1)).sum(axis=-1).mean()
    return -normal_tanh(outputs, noise)[1].mean()

  def ratio(params):
    return np.exp(_log_prob(params, observation, action) - old)

  def policy_loss(params):
    clipped = np.clip(ratio(params), 1 - epsilon, 1 + epsilon)
    gain = np.minimum(ratio(params) * advantage, clipped * advantage)
    return -gain.mean() - hyperparams["entropy_cost"] * entropy(params)

  def critic_loss(params):
    return np.mean(0.5 * (values(params) - target) ** 2)

  def values(params):
    return mlp(params, seen_by("critic", observation))[..., 0]

  value = values(state.critic_params)
  metrics = {}
  for role, loss in (("policy", policy_loss), ("critic", critic_loss)):
    params, moments, found, length = descend(
      loss, getattr(state, f"{role}_params"),
      getattr(state, f"{role}_optimizer_state"),
      hyperparams[f"{role}_learning_rate"],
      max_norm=hyperparams["max_gradient_norm"])
    metrics |= {f"{role}_loss": found, f"gradient_norm/{role}": length}
    fields = {f"{role}_params": params, f"{role}_optimizer_state": moments}
    state = state._replace(**fields)
  change = ratio(before)
  if not is_discrete:
    fresh, _ = normal_tanh(mlp(before, seen_by("policy", observation)), noise)
    metrics["action_saturation"] = np.mean(np.abs(fresh) > 0.99)
  return state, metrics | {
    "policy_entropy": entropy(before),
    "value_mean": value.mean(),
    "policy_divergence": np.mean(change - 1 - np.log(change)),
    "clipped_share": np.mean(np.abs(change - 1) > epsilon)}


def ppo_update(state, hyperparams, rollout, draws):
  """One update of PPO from a rollout [T, E] with tanh networks.

  Args:
    state: a `PPOState`.
    hyperparams: numbers by name.
    rollout: transitions [T, E].
    draws: of each minibatch, its places in the rollout and its fresh noise.

  Returns:
    The state afterwards, and the metrics.
  """
  seen = float64(rollout)
  observation, next_observation = (
    normalize(state.observation_statistics, x)
    for x in (seen.observation, seen.next_observation))
  is_recurrent = "memory" in seen.extras
  if is_recurrent:
    whole = sequences(jax.tree.map(lambda x: x.swapaxes(0, 1), seen._replace(
      observation=observation, next_observation=next_observation)))
    observation, next_observation = whole.observation, whole.next_observation
  value, next_value = (
    mlp(state.critic_params, seen_by("critic", x))[..., 0]
    for x in (observation, next_observation))
  if is_recurrent:
    value, next_value = (
      x.reshape(seen.reward.shape[::-1]).T for x in (value, next_value))
  columns = zip(
    (hyperparams["reward_scaling"] * seen.reward).T,
    (hyperparams["discount"] * seen.discount).T,
    seen.extras["truncation"].T, value.T, next_value.T, strict=True)
  advantage = np.stack(
    [advantages(*x, hyperparams["gae_lambda"]) for x in columns], axis=1)
  action, log_prob = seen.action, seen.extras["log_prob"]
  if "pre_tanh" in seen.extras:
    action = np.tanh(seen.extras["pre_tanh"])  # Float32 rounds it.
    # That of actions, not of the numbers whose tanh they are.
    log_prob = log_prob - np.log(1 - action**2).sum(axis=-1)
  steps = [
    x if is_recurrent else x.reshape(-1, *x.shape[2:])
    for x in (
      seen.observation if is_recurrent else observation, action, log_prob,
      advantage, value + advantage)]
  learned = []
  for places, noise in zip(*draws, strict=True):
    if is_recurrent:  # Places are of whole environments.
      rows = [x[:, places].swapaxes(0, 1) for x in steps]
      batch = [x.reshape(-1, *x.shape[2:]) for x in rows]
      batch[0] = jax.tree.map(operator.itemgetter(places), observation)
    else:
      batch = [x[places] for x in steps]
    state, metrics = _step(state, hyperparams, batch, noise)
    learned.append(metrics)
  return state, jax.tree.map(lambda *x: np.mean(x), *learned)
