"""CrossQ's and XQC's updates in float64 NumPy, slow and independent.

Gradients are central differences, through the batches' statistics too. The
states are those of the learners, with NumPy arrays for leaves.
"""

import jax
import numpy as np

from tests.learners import reference

_EPSILON = 1e-3


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
      "count": count,
    }
  outputs = params["scale"] * (inputs - mean) / np.sqrt(variance + _EPSILON)
  return outputs + params.get("offset", 0.0), state


def _critic(params, state, inputs, is_training, is_before):
  """One critic with tanh layers: [B, I] -> [B, K], and its new averages."""
  moved = {}

  def normalize(name, inputs):
    name = f"critic/batch_norm_{name}"
    outputs, moved[name] = _batch_norm(
      params[name], state[name], inputs, is_training
    )
    return outputs

  hidden = normalize("inputs", inputs)
  for i in range(sum("linear" in name for name in params)):
    layer = params[f"critic/linear_{i}"]
    hidden = hidden @ layer["w"] + layer.get("b", 0.0)
    if is_before:
      hidden = np.tanh(normalize(i, hidden))
    else:
      hidden = normalize(i, np.tanh(hidden))
  output = params["critic/output"]
  return hidden @ output["w"] + output["b"], moved


def critics(params, state, observation, action, is_training, is_before):
  """Twin critics: [B, 2, K], and their new averages."""
  inputs = np.concatenate([observation, action], axis=-1)
  each = [
    _critic(
      *jax.tree.map(lambda x, i=i: x[i], (params, state)),
      inputs, is_training, is_before,
    )
    for i in range(2)
  ]  # fmt: skip
  outputs, states = zip(*each, strict=True)
  return np.stack(outputs, axis=1), jax.tree.map(
    lambda *x: np.stack(x), *states
  )


def softmax(logits):
  """Probabilities, over the last axis."""
  weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return weights / weights.sum(axis=-1, keepdims=True)


def two_hot(value, atoms):
  """Values [B] as probabilities [B, K] of the two nearest atoms."""
  spacing = atoms[1] - atoms[0]
  place = (np.clip(value, atoms[0], atoms[-1]) - atoms[0]) / spacing
  below = np.minimum(place.astype(int), len(atoms) - 2)
  probabilities = np.zeros((len(value), len(atoms)))
  rows = np.arange(len(value))
  probabilities[rows, below] = 1 - (place - below)
  probabilities[rows, below + 1] = place - below
  return probabilities


def with_unit_norm(params):
  """Parameters whose weights to each unit have the norm 1."""
  return {
    module: {
      name: x / np.linalg.norm(x, axis=-2, keepdims=True) if name == "w" else x
      for name, x in values.items()
    }
    for module, values in params.items()
  }


def _policy_step(state, hyperparams, observation, q_fn, noise):
  """One step of the policy and of the temperature, and metrics."""
  temperature = np.exp(state.log_temperature)

  def sample(params):
    return reference.normal_tanh(reference.mlp(params, observation), noise)

  def loss(params):
    action, log_prob = sample(params)
    return np.mean(temperature * log_prob - q_fn(action).min(axis=1))

  gradients = reference.gradient(loss, state.policy_params)
  policy_params, policy_optimizer_state = reference.adam(
    gradients, state.policy_optimizer_state, state.policy_params,
    hyperparams["policy_learning_rate"], _b1(state),
  )  # fmt: skip
  action, log_prob = sample(state.policy_params)
  excess = np.mean(log_prob + hyperparams["target_entropy"])
  log_temperature, temperature_optimizer_state = reference.adam(
    -temperature * excess, state.temperature_optimizer_state,
    state.log_temperature, hyperparams["temperature_learning_rate"],
  )  # fmt: skip
  metrics = {
    "policy_loss": loss(state.policy_params),
    "policy_entropy": -np.mean(log_prob),
    "temperature": temperature,
    "temperature_loss": -temperature * excess,
    "action_saturation": np.mean(np.abs(action) > 0.99),
    "gradient_norm/policy": reference.norm(gradients),
  }
  return state._replace(
    policy_params=policy_params,
    log_temperature=log_temperature,
    policy_optimizer_state=policy_optimizer_state,
    temperature_optimizer_state=temperature_optimizer_state,
  ), metrics


def _is_xqc(state):
  return hasattr(state, "target_critic_params")


def _b1(state):
  return 0.9 if _is_xqc(state) else 0.5


def update(state, hyperparams, transitions, noises):
  """A round of either learner.

  Args:
    state: a `CrossQState` or an `XQCState` of float64 arrays.
    hyperparams: as the learner's.
    transitions: [N, B].
    noises: standard normal, [N, B, A] at the next observations, [B, A] at the
      last batch's.

  Returns:
    The new state and metrics, those of the critics as means over the steps.
  """
  is_xqc = _is_xqc(state)
  all_batches = reference.normalized(state.observation_statistics, transitions)
  temperature = np.exp(state.log_temperature)
  params, averages = state.critic_params, state.critic_state
  optimizer_state = state.critic_optimizer_state
  if is_xqc:
    count = state.reward_statistics.num_updates + 1
    largest = state.reward_statistics.largest
    new = np.abs(all_batches.reward).max(axis=1).mean()
    largest = largest + max(1 / count, 1e-3) * (new - largest)
    num_atoms = params["critic/output"]["b"].shape[-1]
    size = all_batches.action.shape[-1]
    atoms = np.linspace(-1, 1, num_atoms) * 1.25 * (
      hyperparams["reward_scaling"] * largest + temperature * size
    ) / (1 - hyperparams["discount"])  # fmt: skip

  def values(outputs):
    return softmax(outputs) @ atoms if is_xqc else outputs[..., 0]

  rounds = []
  for n in range(len(noises[0])):
    batch = jax.tree.map(lambda x, n=n: x[n], all_batches)
    size = len(batch.reward)
    next_action, next_log_prob = reference.normal_tanh(
      reference.mlp(state.policy_params, batch.next_observation), noises[0][n]
    )
    inputs = (
      np.concatenate([batch.observation, batch.next_observation]),
      np.concatenate([batch.action, next_action]),
      True,
      is_xqc,
    )
    of_targets = state.target_critic_params if is_xqc else params
    outputs, _ = critics(of_targets, averages, *inputs)
    target = (
      hyperparams["reward_scaling"] * batch.reward
      + hyperparams["discount"] * batch.discount
      * (values(outputs)[size:].min(axis=1) - temperature * next_log_prob)
    )  # fmt: skip

    def loss(params, inputs=inputs, averages=averages, target=target):
      outputs = critics(params, averages, *inputs)[0][: len(target)]
      if not is_xqc:
        q = outputs[..., 0]
        return np.mean(0.5 * np.sum((q - target[:, None]) ** 2, axis=1))
      labels = two_hot(target, atoms)[:, None]
      return -np.mean(np.sum(labels * np.log(softmax(outputs)), axis=(1, 2)))

    gradients = reference.gradient(loss, params)
    outputs, moved = critics(params, averages, *inputs)
    rounds.append({
      "critic_loss": loss(params),
      "q_mean": np.mean(values(outputs)[:size]),
      "gradient_norm/critic": reference.norm(gradients),
    })
    params, optimizer_state = reference.adam(
      gradients, optimizer_state, params,
      hyperparams["critic_learning_rate"], _b1(state),
    )  # fmt: skip
    if is_xqc:
      params = with_unit_norm(params)
    averages = moved

  def q_fn(action):
    args = params, averages, batch.observation, action, False, is_xqc
    return values(critics(*args)[0])

  state, metrics = _policy_step(
    state, hyperparams, batch.observation, q_fn, noises[1]
  )
  metrics |= {
    name: np.mean([metrics[name] for metrics in rounds]) for name in rounds[0]
  }
  state = state._replace(
    critic_params=params,
    critic_state=averages,
    critic_optimizer_state=optimizer_state,
  )
  if is_xqc:
    metrics["largest_value"] = atoms[-1]
    state = state._replace(
      target_critic_params=reference.moved(
        state.target_critic_params, params, hyperparams["tau"]
      ),
      reward_statistics=type(state.reward_statistics)(count, largest),
    )
  return state, metrics
