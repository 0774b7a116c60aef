"""Updates of DQN, PQN and discrete SAC in float64, see `reference_updates`."""

import jax
import numpy as np
from scipy import special

from tests.learners.reference import descend, float64, mlp, normalize
from tests.learners.reference_updates import _batches, _moved


def _of(values, action):
  """The values [B, n, ...] of the actions taken, [B, ...]."""
  return values[np.arange(len(action)), action]


def _epsilon(state, hyperparams):
  """The share of actions drawn uniformly."""
  return 1 - (1 - hyperparams["epsilon"]) * min(
    state.policy_optimizer_state.count / hyperparams["epsilon_updates"], 1)


def dqn_update(state, hyperparams, transitions, noises):
  """DQN with tanh networks, from one batch [1, B]; it draws nothing."""
  del noises
  (batch,) = _batches(state, transitions)
  best = mlp(state.policy_params, batch.next_observation).argmax(axis=-1)
  target = (
    hyperparams["reward_scaling"] * batch.reward
    + hyperparams["discount"] * batch.discount
    * _of(mlp(state.target_policy_params, batch.next_observation), best))

  def loss(params):
    error = np.abs(_of(mlp(params, batch.observation), batch.action) - target)
    return np.mean(np.where(error < 1, 0.5 * error**2, error - 0.5))

  params, moments, found, length = descend(
    loss, state.policy_params, state.policy_optimizer_state,
    hyperparams["policy_learning_rate"], decay=hyperparams["weight_decay"])
  return state._replace(
    policy_params=params, policy_optimizer_state=moments,
    target_policy_params=_moved(
      state.target_policy_params, params, hyperparams["tau"])), {
    "critic_loss": found, "gradient_norm/policy": length,
    "epsilon": _epsilon(state, hyperparams),
    "q_mean": mlp(state.policy_params, batch.observation).mean()}


def pqn_update(state, hyperparams, rollout, draws):
  """PQN with tanh networks, from a rollout [T, E], of minibatches' places."""
  seen, epsilon = float64(rollout), _epsilon(state, hyperparams)
  observation, next_observation = (
    normalize(state.observation_statistics, x)
    for x in (seen.observation, seen.next_observation))
  next_value = mlp(state.policy_params, next_observation).max(axis=-1)
  target, weight = np.zeros(next_value.shape), hyperparams["q_lambda"]
  for t, e in np.ndindex(target.shape):
    t = len(target) - 1 - t
    after = next_value[t, e]
    if t < len(target) - 1 and not seen.extras["truncation"][t, e]:
      after = (1 - weight) * after + weight * target[t + 1, e]
    target[t, e] = hyperparams["reward_scaling"] * seen.reward[t, e] + (
      hyperparams["discount"] * seen.discount[t, e] * after)
  rows = [
    x.reshape(-1, *x.shape[2:]) for x in (observation, seen.action, target)]
  learned = []
  for places in draws[0]:
    x, action, y = (row[places] for row in rows)
    params, moments, found, length = descend(
      lambda params, x=x, action=action, y=y: np.mean(
        0.5 * (_of(mlp(params, x), action) - y) ** 2),
      state.policy_params, state.policy_optimizer_state,
      hyperparams["policy_learning_rate"],
      max_norm=hyperparams["max_gradient_norm"])
    learned.append({
      "critic_loss": found, "gradient_norm/policy": length, "epsilon": epsilon,
      "q_mean": mlp(state.policy_params, x).mean()})
    state = state._replace(policy_params=params, policy_optimizer_state=moments)
  return state, jax.tree.map(lambda *x: np.mean(x), *learned)


def _critics(params, observation):
  """Values of both critics, [B, n, 2]."""
  return np.stack([
    mlp(jax.tree.map(lambda x, i=i: x[i], params), observation)
    for i in range(2)], axis=-1)


def discrete_sac_update(state, hyperparams, transitions, noises):
  """Discrete SAC with tanh networks, from one batch [1, B]."""
  del noises
  (batch,) = _batches(state, transitions)
  temperature = np.exp(state.log_temperature)

  def value(policy_params, q, observation):
    logits = mlp(policy_params, observation)
    logs = special.log_softmax(logits, axis=-1)
    soft = q.min(axis=-1) - temperature * logs
    return np.sum(np.exp(logs) * soft, axis=-1)

  target = (
    hyperparams["reward_scaling"] * batch.reward
    + hyperparams["discount"] * batch.discount * value(
      state.policy_params,
      _critics(state.target_critic_params, batch.next_observation),
      batch.next_observation))

  def critic_loss(params):
    q = _of(_critics(params, batch.observation), batch.action)
    return np.mean(0.5 * np.sum((q - target[:, None]) ** 2, axis=1))

  rates, decay = hyperparams, hyperparams["weight_decay"]
  critic_params, critic_moments, critic_value, critic_length = descend(
    critic_loss, state.critic_params, state.critic_optimizer_state,
    rates["critic_learning_rate"], decay=decay)
  q = _critics(critic_params, batch.observation)
  policy_params, policy_moments, policy_value, policy_length = descend(
    lambda x: -np.mean(value(x, q, batch.observation)),
    state.policy_params, state.policy_optimizer_state,
    rates["policy_learning_rate"], decay=decay)
  probs = special.softmax(mlp(state.policy_params, batch.observation), axis=-1)
  entropy = special.entr(probs).sum(axis=-1).mean()
  excess = hyperparams["target_entropy"] - entropy
  log_temperature, moments, temperature_value, _ = descend(
    lambda x: -np.exp(x) * excess, state.log_temperature,
    state.temperature_optimizer_state, rates["temperature_learning_rate"])
  return state._replace(
    policy_params=policy_params, policy_optimizer_state=policy_moments,
    critic_params=critic_params, critic_optimizer_state=critic_moments,
    target_critic_params=_moved(
      state.target_critic_params, critic_params, hyperparams["tau"]),
    log_temperature=log_temperature, temperature_optimizer_state=moments), {
    "critic_loss": critic_value, "gradient_norm/critic": critic_length,
    "policy_loss": policy_value, "gradient_norm/policy": policy_length,
    "q_mean": _of(
      _critics(state.critic_params, batch.observation), batch.action).mean(),
    "policy_entropy": entropy, "temperature": temperature,
    "temperature_loss": temperature_value}
