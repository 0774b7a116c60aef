"""SAC's and TD3's updates in float64 NumPy, slow and independent.

Gradients are central differences of the losses as the papers write them. The
states are those of the learners, with NumPy arrays for leaves.
"""

import jax
import numpy as np

_STEP = 1e-5


def float64(tree):
  """A tree with float64 leaves (and Adam's counts as integers)."""
  return jax.tree.map(
    lambda x: np.asarray(x, np.float64 if x.dtype == np.float32 else None),
    tree,
  )


def mlp(params, inputs):
  """A multi-layer perceptron with tanh layers: [..., I] -> [..., outputs]."""
  layers = sorted(params)  # linear_0, linear_1, ..., output.
  for name in layers:
    inputs = inputs @ params[name]["w"] + params[name]["b"]
    if name != layers[-1]:
      inputs = np.tanh(inputs)
  return inputs


def twins(params, observation, action):
  """The values of twin critics, [..., 2]."""
  inputs = np.concatenate([observation, action], axis=-1)
  return np.stack([
    mlp(jax.tree.map(lambda x, i=i: x[i], params), inputs)[..., 0]
    for i in range(2)
  ], axis=-1)


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


def norm(tree):
  """The Euclidean norm of all numbers of a tree."""
  return np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(tree)))


def adam(gradients, state, params, learning_rate, b1=0.9):
  """One step of Adam: algorithm 1 of Kingma and Ba, arXiv 1412.6980."""
  count = state.count + 1
  mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradients)
  nu = jax.tree.map(
    lambda v, g: 0.999 * v + 0.001 * g**2, state.nu, gradients
  )
  params = jax.tree.map(
    lambda p, m, v: p - learning_rate * (m / (1 - b1**count))
    / (np.sqrt(v / (1 - 0.999**count)) + 1e-8),
    params, mu, nu,
  )
  return params, type(state)(count, mu, nu)


def moved(targets, online, tau):
  """Target networks after one move."""
  return jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, targets, online)


def critic_step(params, optimizer_state, batch, target, learning_rate):
  """One step of the critics towards targets [B].

  Returns:
    Their parameters, Adam's state, and metrics.
  """
  def loss(params):
    q = twins(params, batch.observation, batch.action)
    return np.mean(0.5 * np.sum((q - target[:, None]) ** 2, axis=1))

  gradients = gradient(loss, params)
  metrics = {
    "critic_loss": loss(params),
    "q_mean": np.mean(twins(params, batch.observation, batch.action)),
    "gradient_norm/critic": norm(gradients),
  }
  return *adam(gradients, optimizer_state, params, learning_rate), metrics


def normalized(statistics, transitions):
  """Transitions in float64, with observations as the networks see them."""
  transitions = float64(transitions)
  return transitions._replace(
    observation=normalize(statistics, transitions.observation),
    next_observation=normalize(statistics, transitions.next_observation),
  )


def sac_update(state, hyperparams, transitions, noises):
  """SAC with a learned temperature.

  Args:
    state: a `SACState` of float64 arrays.
    hyperparams: as the learner's.
    transitions: [1, B].
    noises: standard normal, [B, A] at the next and at the observations.

  Returns:
    The new state and metrics.
  """
  batch = normalized(state.observation_statistics, transitions)
  batch = jax.tree.map(lambda x: x[0], batch)
  temperature = np.exp(state.log_temperature)
  next_action, next_log_prob = normal_tanh(
    mlp(state.policy_params, batch.next_observation), noises[0]
  )
  next_q = twins(
    state.target_critic_params, batch.next_observation, next_action
  )
  next_v = next_q.min(axis=1) - temperature * next_log_prob
  target = (
    hyperparams["reward_scaling"] * batch.reward
    + hyperparams["discount"] * batch.discount * next_v
  )
  critic_params, critic_optimizer_state, metrics = critic_step(
    state.critic_params, state.critic_optimizer_state, batch, target,
    hyperparams["critic_learning_rate"],
  )

  def policy_loss(params):
    action, log_prob = normal_tanh(mlp(params, batch.observation), noises[1])
    q = twins(critic_params, batch.observation, action).min(axis=1)
    return np.mean(temperature * log_prob - q)

  policy_gradients = gradient(policy_loss, state.policy_params)
  policy_params, policy_optimizer_state = adam(
    policy_gradients, state.policy_optimizer_state, state.policy_params,
    hyperparams["policy_learning_rate"],
  )
  action, log_prob = normal_tanh(
    mlp(state.policy_params, batch.observation), noises[1]
  )

  def temperature_loss(log_temperature):
    excess = log_prob + hyperparams["target_entropy"]
    return np.mean(-np.exp(log_temperature) * excess)

  log_temperature, temperature_optimizer_state = adam(
    gradient(temperature_loss, state.log_temperature),
    state.temperature_optimizer_state, state.log_temperature,
    hyperparams["temperature_learning_rate"],
  )
  return state._replace(
    policy_params=policy_params,
    critic_params=critic_params,
    target_critic_params=moved(
      state.target_critic_params, critic_params, hyperparams["tau"]
    ),
    log_temperature=log_temperature,
    policy_optimizer_state=policy_optimizer_state,
    critic_optimizer_state=critic_optimizer_state,
    temperature_optimizer_state=temperature_optimizer_state,
  ), metrics | {
    "policy_loss": policy_loss(state.policy_params),
    "policy_entropy": -np.mean(log_prob),
    "temperature": temperature,
    "temperature_loss": temperature_loss(state.log_temperature),
    "action_saturation": np.mean(np.abs(action) > 0.99),
    "gradient_norm/policy": norm(policy_gradients),
  }


def td3_update(state, hyperparams, transitions, noise):
  """TD3: N critic steps, then one of the policy and one of the targets.

  Args:
    state: a `TD3State` of float64 arrays.
    hyperparams: as the learner's.
    transitions: [N, B].
    noise: standard normal, [N, B, A], of the target actions.

  Returns:
    The new state and metrics, those of the critics as means over the steps.
  """
  all_batches = normalized(state.observation_statistics, transitions)
  critic_params = state.critic_params
  critic_optimizer_state = state.critic_optimizer_state
  rounds = []
  for n in range(len(noise)):
    batch = jax.tree.map(lambda x, n=n: x[n], all_batches)
    clip = hyperparams["target_noise_clip"]
    next_action = np.tanh(
      mlp(state.target_policy_params, batch.next_observation)
    ) + np.clip(hyperparams["target_noise_scale"] * noise[n], -clip, clip)
    next_q = twins(
      state.target_critic_params, batch.next_observation,
      np.clip(next_action, -1, 1),
    )
    target = (
      hyperparams["reward_scaling"] * batch.reward
      + hyperparams["discount"] * batch.discount * next_q.min(axis=1)
    )
    critic_params, critic_optimizer_state, metrics = critic_step(
      critic_params, critic_optimizer_state, batch, target,
      hyperparams["critic_learning_rate"],
    )
    rounds.append(metrics)

  def policy_action(params):
    return np.tanh(mlp(params, batch.observation))

  def policy_loss(params):
    q = twins(critic_params, batch.observation, policy_action(params))
    return -np.mean(q[:, 0])

  policy_gradients = gradient(policy_loss, state.policy_params)
  policy_params, policy_optimizer_state = adam(
    policy_gradients, state.policy_optimizer_state, state.policy_params,
    hyperparams["policy_learning_rate"],
  )
  return state._replace(
    policy_params=policy_params,
    critic_params=critic_params,
    target_policy_params=moved(
      state.target_policy_params, policy_params, hyperparams["tau"]
    ),
    target_critic_params=moved(
      state.target_critic_params, critic_params, hyperparams["tau"]
    ),
    policy_optimizer_state=policy_optimizer_state,
    critic_optimizer_state=critic_optimizer_state,
  ), {
    name: np.mean([metrics[name] for metrics in rounds]) for name in rounds[0]
  } | {
    "policy_loss": policy_loss(state.policy_params),
    "action_saturation": np.mean(
      np.abs(policy_action(state.policy_params)) > 0.99
    ),
    "gradient_norm/policy": norm(policy_gradients),
  }
