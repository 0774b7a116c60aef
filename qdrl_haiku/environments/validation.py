"""Checks of an environment of one instance; messages say what to change.

When an environment is wrapped, it is only traced, which costs no physics. A
user's own is also run for a few steps, so that a NaN in it is reported by its
field, not as agents that all diverge.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import checks, platform, specs, trees
from qdrl_haiku.environments.interface import BatchedEnvironment, State
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.types import Array, Key, Tree

_NUM_STEPS = 8


def check_valid_environment(env: object) -> None:
  """Refuses an object that isn't an environment of one instance."""
  name = (env if inspect.isclass(env) else type(env)).__name__
  if inspect.isclass(env):
    raise ValueError(f"env={name} is a class; give an instance, {name}(...).")
  if hasattr(env, "advance") and hasattr(env, "episode_length"):
    raise ValueError(
      f"env={name} is any number of instances already, as environments.create "
      "returns them; use it directly, or give the one instance, `unwrapped`.")
  advice = (
    "give an object with reset(key), step(state, action), observation_size and "
    "action_size (or observation_spec and action_spec).")
  packages = {x.__module__.partition(".")[0] for x in type(env).__mro__}
  if packages & {"gym", "gymnasium"}:
    advice = (
      "environments of Gymnasium are made by name, as many as needed: "
      "gymnasium.register('Mine-v0', ...) and give 'gymnasium:Mine-v0'.")
  for attribute in ("reset", "step", "observation_size", "action_size"):
    either = {attribute, attribute.replace("_size", "_spec")}
    # Of the class first: brax computes its observation_size by a reset.
    if not any(hasattr(x, name) for x in (type(env), env) for name in either):
      raise ValueError(f"env={name} has no {attribute!r}; {advice}")


def declared_action(env: object) -> specs.Action:
  """Returns the spec of actions that an environment declares."""
  declared = getattr(env, "action_spec", None)
  return specs.action_spec(declared or _declared_size(env, "action_size"))


def declared_observation(env: object) -> specs.Observation | None:
  """Returns the spec of observations that is declared, or None if none is."""
  if hasattr(env, "observation_spec"):
    return env.observation_spec
  size = _declared_size(env, "observation_size")
  # brax says the shapes of a dict there.
  return None if isinstance(size, Mapping) else specs.observation_spec(size)


def declared_tunables(env: Any) -> dict[str, Hyperparameter]:
  """Returns the tunables that an environment declares, by name."""
  declared = dict(getattr(env, "tunables", {}))
  kind = type(env).__name__
  for name, value in declared.items():
    where = f"env={kind}: tunables[{name!r}]"
    if not isinstance(value, Hyperparameter) or value.default is None:
      raise ValueError(
        f"{where}={value!r} is no environments.Hyperparameter with a default; "
        "give one.")
    if ":" in name or not name:
      raise ValueError(
        f"{where}: a name can't be empty or have a colon; rename it.")
    value.check(f"{where} has default={value.default}, which", value.default)
  if declared and not checks.takes_arguments(env.step, 3):
    raise ValueError(
      f"env={kind} has tunables, and its step takes no third argument; let it "
      "take (state, action, tunables), and pass them on where it wraps another "
      "environment.")
  return declared


def _declared_size(env: object, name: str) -> Any:
  """Returns `env.observation_size` or `env.action_size`."""
  sizes: list[Any] = []
  try:
    # brax's observation_size runs a whole reset, op by op, to read a shape:
    # seconds for a robot, unless the reset is only traced.
    jax.eval_shape(lambda: sizes.append(getattr(env, name)))
  except TypeError:  # It computes the number itself, with arrays.
    sizes.append(getattr(env, name))
  return sizes[-1]


def valid_environment_spec(
  reset: Callable[..., State], step: Callable[..., State], key: Tree,
  action: Tree, declared: specs.Observation | None,
  sizes: Mapping[str, int | None],
) -> tuple[State, specs.Observation]:
  """Returns the one shape and dtype of each leaf of an environment's states.

  Environments often start from an int or bool 0 where they later put a float;
  such leaves get the dtype that holds both.

  Args:
    reset: (key) -> state, of one instance.
    step: (state, action) -> state.
    key: an example, or its shape; so is `action`.
    action: of one instance.
    declared: the spec of observations; None for the one that is found.
    sizes: those that vectors in `info` have to have, by name, None for any.

  Returns:
    A state of shapes and dtypes, and the spec of observations.

  Raises:
    ValueError: if a field is missing, or differs from what is declared.
  """
  spec = _traced("reset", reset, key)
  _check_fields(spec, declared, sizes)
  # Twice: the wider dtypes found in the first round may widen others.
  for _ in range(2):
    spec = _widened(spec, _traced("step", step, spec, action))
  if declared is None:
    declared = jax.tree.map(
      lambda x: specs.Array(
        x.shape, jnp.float32 if specs.is_float(x) else x.dtype),
      spec.obs)
  return spec, declared


def _traced(name: str, method: Callable[..., State], *args: Tree) -> State:
  """Returns the shapes that a method returns, without weak types."""
  try:
    shapes = jax.eval_shape(method, *args)
  except TypeError as error:
    # Others are mistakes in the user's own code, to be shown where they are.
    if not isinstance(error, jax.errors.JAXTypeError) and (
      "valid JAX type" not in str(error)
    ):
      raise
    reason = str(error).partition("\n")[0].rstrip(".")
    raise ValueError(
      f"env.{name} can't be compiled by jax ({reason}); return arrays, and "
      "write it with jax.numpy, with jnp.where instead of `if`.") from error
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)


def _check_fields(
  spec: State, declared: specs.Observation | None,
  sizes: Mapping[str, int | None],
) -> None:
  """Checks the fields that the rest of the package reads."""
  for name in ("obs", "reward", "done", "metrics", "info", "replace"):
    if not hasattr(spec, name):
      raise ValueError(
        f"env.reset returns {type(spec).__name__} without {name!r}; return an "
        "environments.State or brax's State.")
  if "first_obs" in spec.info:
    raise ValueError(
      "env resets itself (info['first_obs']), which hides the last observation "
      "of an episode; give it without brax's AutoResetWrapper.")
  fields, observed = _fields(spec), _observed(spec.obs)
  expected = observed if declared is None else _observed(declared)
  shapes = {x: leaf.shape for x, leaf in expected.items()}
  if differing := shapes.keys() ^ observed.keys():
    raise ValueError(
      f"env.reset returns other observations than are declared: only one of "
      f"them has {', '.join(sorted(differing))}; correct either.")
  for name, size in sizes.items():
    if size is not None and name not in fields:
      raise ValueError(
        f"{name} is described as {size} numbers, but env.reset returns none; "
        "return it, or describe none.")
    # Of any size, as long as it's a vector.
    found = (getattr(fields.get(name), "shape", None) or (1,))[0]
    shapes[name] = (found if size is None else size,)
  for field, value in fields.items():
    shape = shapes.get(field, ())
    if not isinstance(value, jax.ShapeDtypeStruct):
      raise ValueError(
        f"{field} is a {type(value).__name__}; return one array.")
    if value.shape != shape:
      raise ValueError(
        f"{field} has shape {value.shape} instead of {shape}; return that, or "
        "correct what the environment declares.")


def _observed(observation: Tree) -> dict[str, Tree]:
  """Returns an observation's arrays, or their specs, by name."""
  return {
    f"obs/{name}" if name else "obs": x
    for name, x in trees.named_tree_leaves(observation)}


def _fields(state: State) -> dict[str, Array]:
  """Returns the fields of a state that the rest of the package reads."""
  return {"reward": state.reward, "done": state.done} | _observed(state.obs) | {
    f"info['{name}']": state.info[name]
    for name in ("truncation", "state_descriptor", "objectives")
    if name in state.info}


def _widened(spec: State, stepped: State) -> State:
  """Returns `spec` with the dtypes that also hold what a step returned."""
  before, after = (dict(trees.named_tree_leaves(x)) for x in (spec, stepped))
  structures: list[Tree] = [jax.tree.structure(x) for x in (spec, stepped)]
  if structures[0] != structures[1]:
    differing = ", ".join(sorted(before.keys() ^ after.keys()))
    raise ValueError(
      "env.reset and env.step return different structures: only one of them "
      f"has {differing or 'the same tree type'}; return the same fields and "
      "keys from both.")
  for path, leaf in before.items():
    if leaf.shape != (shape := after[path].shape):
      raise ValueError(
        f"env.reset and env.step return different shapes: {path} "
        f"{list(leaf.shape)} -> {list(shape)}; return the same from both.")

  def promote(a: Array, b: Array) -> Tree:
    if a.dtype == b.dtype:  # Of a key, for one, which can't be promoted.
      return a
    return jax.ShapeDtypeStruct(a.shape, jnp.promote_types(a.dtype, b.dtype))

  return jax.tree.map(promote, spec, stepped)


def check_valid_environment_values(env: BatchedEnvironment) -> None:
  """Runs one instance for a few steps with random actions, and looks at it."""

  def run(key: Key) -> tuple[dict, dict]:
    def step(state: State, action: Array) -> tuple[State, dict]:
      state = env.advance(state, action)
      return state, _fields(state.pipeline_state)

    reset_key, action_key = jax.random.split(key)
    state = env.reset(reset_key)
    actions = env.action_spec.sample(action_key, _NUM_STEPS)
    # The fields as the environment itself returned them.
    first = _fields(state.pipeline_state)
    return first, jax.lax.scan(step, state, actions)[1]

  advice = getattr(
    getattr(env, "unwrapped", None), "advice", "return finite numbers.")
  key = jax.random.key(0)
  first, later = jax.device_get(platform.compiled(run, key)(key))
  _check_values("env.reset", first, advice)
  for t in range(_NUM_STEPS):
    values = {name: x[t] for name, x in later.items()}
    if _check_values("env.step", values, advice):
      break  # Steps after the end aren't used.


def _check_values(
  method: str, values: dict[str, np.ndarray], advice: str
) -> bool:
  """Checks the fields of one state; returns whether an episode ends in it."""
  ends = False
  for name, value in values.items():
    value = np.asarray(value, np.float64)
    for index in np.argwhere(~np.isfinite(value))[:1].tolist():
      raise ValueError(
        f"{method} returned {value[tuple(index)]} in {name}{index or ''}; "
        + advice)
    if name in ("done", "info['truncation']"):
      if value not in (0, 1) or (value and method == "env.reset"):
        raise ValueError(
          f"{method} returned {name}={value:g}; return 1 where a step ends an "
          "episode, else 0, and 0 at a reset.")
      ends |= bool(value)
  return ends
