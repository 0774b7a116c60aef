"""The learners' updates in float64 NumPy, slow and independent.

Gradients are central differences of the losses as the papers write them,
through the batches' statistics too. The states are those of the learners, with
NumPy arrays for leaves.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special

from tests.learners.reference import (
  descend,
  float64,
  mlp,
  normal_tanh,
  normalize,
  seen_by,
  sequences,
)


def _moved(targets, online, tau):
  """Target networks after one move."""
  return jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, targets, online)


def _batch_norm(params, state, inputs, is_training):
  """One layer, before batch renormalisation begins; and its new averages."""
  mean, variance = state["mean"], state["variance"]
  if is_training:
    mean, variance = inputs.mean(axis=0), inputs.var(axis=0)
    count = state["count"] + 1
    rate = max(1 / count, 0.01)
    state = {
      "mean": state["mean"] + rate * (mean - state["mean"]),
      "variance": state["variance"] + rate * (variance - state["variance"]),
      "count": count}
  outputs = params["scale"] * (inputs - mean) / np.sqrt(variance + 1e-3)
  return outputs + params.get("offset", 0.0), state


def _network(role, params, state, inputs, is_training):
  """A network with tanh layers: [B, I] -> [B, K], and its new averages."""
  if state is None:
    return mlp(params, inputs), None
  moved = {}

  def normalize(name, inputs):
    name = f"{role}/batch_norm_{name}"
    outputs, moved[name] = _batch_norm(
      params[name], state[name], inputs, is_training)
    return outputs

  hidden = normalize("inputs", inputs)
  for i in range(sum("linear" in name for name in params)):
    layer = params[f"{role}/linear_{i}"]
    hidden = hidden @ layer["w"] + layer.get("b", 0.0)
    # XQC, which has no bias, normalises before the activation.
    if "b" in layer:
      hidden = normalize(i, np.tanh(hidden))
    else:
      hidden = np.tanh(normalize(i, hidden))
  output = params[f"{role}/output"]
  return hidden @ output["w"] + output["b"], moved


def _policy(params, inputs, is_training=False):
  """A policy's outputs, and its parameters with new averages, if any."""
  if not hasattr(params, "state"):
    return mlp(params, seen_by("policy", inputs)), params
  outputs, state = _network("policy", *params, inputs, is_training)
  return outputs, params._replace(state=state)


def _with_unit_norm(params):
  """Weights on the unit sphere."""
  return {
    module: values | {
      "w": values["w"] / np.linalg.norm(values["w"], axis=-2, keepdims=True)
    } if "w" in values else values
    for module, values in params.items()}


def _one(shared, params, state, i):
  """The i-th critic's parameters and averages."""
  params, state = jax.tree.map(lambda x: x[i], (params, state))
  return (shared | {"network": params} if shared else params), state


def _critics(params, state, observation, action, is_training):
  """Twin critics: [B, 2, K], and their new averages, if they have some."""
  inputs, shared = seen_by("critic", observation, action), {}
  if "memory" in params:  # Of both.
    shared, params = params, params["network"]
  outputs, states = zip(*(
    _network("critic", *_one(shared, params, state, i), inputs, is_training)
    for i in range(2)), strict=True)
  return np.stack(outputs, axis=1), jax.tree.map(
    lambda *x: np.stack(x), *states)


def _values(outputs, atoms):
  """Values of critics' outputs: those, or means over atoms."""
  if atoms is None:
    return outputs[..., 0]
  return special.softmax(outputs, axis=-1) @ atoms


class _Critics(NamedTuple):
  params: Any
  averages: Any
  moments: Any


def _critic_step(before, inputs, target, hyperparams, b1=0.9, atoms=None):
  """The critics after a step towards targets [B], and metrics."""
  def loss(params):
    outputs, _ = _critics(params, before.averages, *inputs, True)
    outputs = outputs[: len(target)]
    if atoms is None:
      error = outputs[..., 0] - target[:, None]
      return np.mean(0.5 * np.sum(error**2, axis=1))
    # Of each target the two nearest atoms have all the probability.
    value = np.clip(target, atoms[0], atoms[-1])[:, None, None]
    labels = np.maximum(1 - np.abs(value - atoms) / (atoms[1] - atoms[0]), 0)
    logs = special.log_softmax(outputs, axis=-1)
    return -np.mean(np.sum(labels * logs, axis=(1, 2)))

  outputs, averages = _critics(before.params, before.averages, *inputs, True)
  params, moments, value, length = descend(
    loss, before.params, before.moments, hyperparams["critic_learning_rate"],
    b1, hyperparams.get("weight_decay", 0.0))
  if atoms is not None:
    params = _with_unit_norm(params)
  return _Critics(params, averages, moments), {
    "critic_loss": value,
    "q_mean": np.mean(_values(outputs, atoms)[: len(target)]),
    "gradient_norm/critic": length}


def _batches(state, transitions):
  """Each batch in float64, with observations as the networks see them."""
  whole = float64(transitions)
  whole = whole._replace(
    observation=normalize(state.observation_statistics, whole.observation),
    next_observation=normalize(
      state.observation_statistics, whole.next_observation))
  num_batches = len(whole.reward)
  batches = [
    jax.tree.map(lambda x, n=n: x[n], whole) for n in range(num_batches)]
  return [sequences(x) if x.reward.ndim == 2 else x for x in batches]


def _mean(rounds):
  """The means of metrics over the critics' steps."""
  return {name: np.mean([x[name] for x in rounds]) for name in rounds[0]}


def soft_update(state, hyperparams, transitions, noises):
  """SAC, CrossQ or XQC with a learned temperature; see `td3_update`.

  Args:
    state: of float64 arrays.
    hyperparams: as the learner's.
    transitions: [N, B], or sequences [N, B, L], without burn-in.
    noises: [N, B, A] at the next observations, [B, A] at the last batch's.
  """
  targets = getattr(state, "target_critic_params", None)
  b1 = 0.9 if targets else 0.5  # CrossQ's.
  batches = _batches(state, transitions)
  temperature = np.exp(state.log_temperature)
  critic = _Critics(
    state.critic_params, getattr(state, "critic_state", None),
    state.critic_optimizer_state)
  atoms, changes, more = None, {}, {}
  if rewards := getattr(state, "reward_statistics", None):
    count, largest = rewards.num_updates + 1, rewards.largest
    new = np.mean([np.abs(x.reward).max() for x in batches])
    largest = largest + max(1 / count, 1e-3) * (new - largest)
    bound = 1.25 * (
      hyperparams["reward_scaling"] * largest
      + temperature * batches[0].action.shape[-1]
    ) / (1 - hyperparams["discount"])
    atoms = bound * np.linspace(
      -1, 1, critic.params["critic/output"]["b"].shape[-1])
    changes["reward_statistics"] = type(rewards)(count, largest)
    more["largest_value"] = bound

  rounds = []
  for batch, noise in zip(batches, noises[0], strict=True):
    size = len(batch.reward)
    next_action, next_log_prob = normal_tanh(
      _policy(state.policy_params, batch.next_observation)[0], noise)
    inputs = batch.observation, batch.action
    beyond = batch.next_observation, next_action
    if critic.averages is not None:
      inputs = beyond = tuple(
        np.concatenate(x) for x in zip(inputs, beyond, strict=True))
    outputs, _ = _critics(
      targets or critic.params, critic.averages, *beyond, True)
    next_q = _values(outputs, atoms)[-size:].min(axis=1)
    target = (
      hyperparams["reward_scaling"] * batch.reward
      + hyperparams["discount"] * batch.discount
      * (next_q - temperature * next_log_prob))
    critic, metrics = _critic_step(
      critic, inputs, target, hyperparams, b1, atoms)
    rounds.append(metrics)
    if atoms is not None:
      targets = _moved(targets, critic.params, hyperparams["tau"])

  def sample(params):
    outputs, _ = _policy(params, batch.observation, True)
    return normal_tanh(outputs, noises[1])

  def policy_loss(params):
    action, log_prob = sample(params)
    outputs, _ = _critics(
      critic.params, critic.averages, batch.observation, action, False)
    q = _values(outputs, atoms).min(axis=1)
    return np.mean(temperature * log_prob - q)

  before, own = state.policy_params, state.policy_params
  if is_stateful := hasattr(before, "state"):
    own = before.params
  policy_params, policy_moments, policy_value, length = descend(
    lambda x: policy_loss(before._replace(params=x) if is_stateful else x),
    own, state.policy_optimizer_state, hyperparams["policy_learning_rate"], b1,
    hyperparams.get("weight_decay", 0.0))
  if atoms is not None:
    policy_params = _with_unit_norm(policy_params)
  if is_stateful:
    _, moved = _policy(before, batch.observation, True)
    policy_params = moved._replace(params=policy_params)
  action, log_prob = sample(before)
  excess = log_prob + hyperparams["target_entropy"]
  log_temperature, temperature_moments, temperature_value, _ = descend(
    lambda x: np.mean(-np.exp(x) * excess), state.log_temperature,
    state.temperature_optimizer_state,
    hyperparams["temperature_learning_rate"])
  if targets:
    if atoms is None:
      targets = _moved(targets, critic.params, hyperparams["tau"])
    changes["target_critic_params"] = targets
  if critic.averages:
    changes["critic_state"] = critic.averages
  return state._replace(
    policy_params=policy_params, critic_params=critic.params,
    log_temperature=log_temperature, policy_optimizer_state=policy_moments,
    critic_optimizer_state=critic.moments,
    temperature_optimizer_state=temperature_moments, **changes,
  ), _mean(rounds) | more | {
    "policy_loss": policy_value, "policy_entropy": -np.mean(log_prob),
    "temperature": temperature, "temperature_loss": temperature_value,
    "action_saturation": np.mean(np.abs(action) > 0.99),
    "gradient_norm/policy": length}


def td3_update(state, hyperparams, transitions, noises):
  """TD3: N critic steps, then one of the policy and one of the targets.

  Args:
    state: a `TD3State` of float64 arrays.
    hyperparams: as the learner's.
    transitions: [N, B].
    noises: standard normal, of which the first, [N, B, A], is that of the
      target actions.

  Returns:
    The new state and metrics, those of the critics as means over the steps.
  """
  critic = _Critics(state.critic_params, None, state.critic_optimizer_state)
  clip, rounds = hyperparams["target_noise_clip"], []
  for batch, noise in zip(_batches(state, transitions), noises[0], strict=True):
    change = np.clip(hyperparams["target_noise_scale"] * noise, -clip, clip)
    next_action = np.tanh(mlp(
      state.target_policy_params, seen_by("policy", batch.next_observation)))
    outputs, _ = _critics(
      state.target_critic_params, None, batch.next_observation,
      np.clip(next_action + change, -1, 1), True)
    target = (
      hyperparams["reward_scaling"] * batch.reward
      + hyperparams["discount"] * batch.discount
      * outputs[..., 0].min(axis=1))
    critic, metrics = _critic_step(
      critic, (batch.observation, batch.action), target, hyperparams)
    rounds.append(metrics)

  def policy_action(params):
    return np.tanh(mlp(params, seen_by("policy", batch.observation)))

  def policy_loss(params):
    outputs, _ = _critics(
      critic.params, None, batch.observation, policy_action(params), False)
    return -np.mean(outputs[:, 0, 0])

  policy_params, policy_moments, policy_value, length = descend(
    policy_loss, state.policy_params, state.policy_optimizer_state,
    hyperparams["policy_learning_rate"],
    decay=hyperparams.get("weight_decay", 0.0))
  tau = hyperparams["tau"]
  action = policy_action(state.policy_params)
  return state._replace(
    policy_params=policy_params, critic_params=critic.params,
    target_policy_params=_moved(state.target_policy_params, policy_params, tau),
    target_critic_params=_moved(state.target_critic_params, critic.params, tau),
    policy_optimizer_state=policy_moments,
    critic_optimizer_state=critic.moments), _mean(rounds) | {
    "policy_loss": policy_value,
    "action_saturation": np.mean(np.abs(action) > 0.99),
    "gradient_norm/policy": length}
