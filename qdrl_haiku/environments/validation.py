"""Checks of an environment of one instance, each message with its mend.

When an environment is wrapped, it is only traced, which costs no physics: a
mistake is then reported by the name of the field, not as a failed scan in a
learner. A user's own is also run for a few steps, so that a NaN in it is
reported by its field, not as agents that all diverge.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import types
from qdrl_haiku.environments.interface import BatchedEnvironment, State

_NUM_STEPS = 8


def check_interface(env: object) -> None:
  """Refuses an object that isn't an environment of one instance."""
  if inspect.isclass(env):
    raise ValueError(f"env={env.__name__} is a class; {_advice(env)}")
  name = type(env).__name__
  if hasattr(env, "advance") and hasattr(env, "episode_steps"):
    raise ValueError(
      f"env={name} is any number of instances already, as environments.create "
      "returns them; use it as it is, or give the one instance, `unwrapped`."
    )
  for attribute, num_arguments in (
    ("reset", 1), ("step", 2), ("observation_size", 0), ("action_size", 0)
  ):
    # Of the class first: brax computes its observation_size by a reset.
    if not hasattr(type(env), attribute) and not hasattr(env, attribute):
      raise ValueError(f"env={name} has no {attribute!r}; {_advice(env)}")
    if num_arguments == 0:
      continue
    try:
      inspect.signature(getattr(env, attribute)).bind(*range(num_arguments))
    except ValueError:  # A method written in C has no signature.
      pass
    except TypeError as error:
      raise ValueError(
        f"env.{attribute} of {name} takes other arguments ({error}); "
        f"{_advice(env)}"
      ) from error


def _advice(env: object) -> str:
  """Says what to give in the place of something that isn't an instance."""
  kind = env if inspect.isclass(env) else type(env)
  packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
  if packages & {"gym", "gymnasium"}:
    # `env` is an environment, or what Gymnasium's registry says about one.
    env_id = getattr(getattr(env, "spec", env), "id", None) or "<id>"
    return (
      "environments of Gymnasium are made by name, as many as needed: give "
      f"'gymnasium:{env_id}', if it's registered without more wrappers; else "
      "first gymnasium.register('Mine-v0', ...) a function that makes it."
    )
  if inspect.isclass(env):
    return f"give an instance, {kind.__name__}(...)."
  if callable(env) and not hasattr(env, "reset"):
    return (
      "call it and give the environment that it returns, or give its name, "
      "'package.module:function'."
    )
  return (
    "give an object with reset(key), step(state, action), observation_size and "
    "action_size."
  )


def read_size(env: object, name: str) -> int:
  """Returns `env.observation_size` or `env.action_size`."""
  sizes: list[Any] = []
  try:
    # brax's observation_size runs a whole reset, op by op, to read a shape:
    # seconds for a robot, unless the reset is only traced.
    jax.eval_shape(lambda: sizes.append(getattr(env, name)))
  except TypeError:  # It computes the number itself, with arrays.
    sizes.append(getattr(env, name))
  size = sizes[-1]
  if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
    raise ValueError(
      f"env.{name}={size} must be an integer of at least 1; give the length of "
      "a flat vector."
    )
  return int(size)


def state_spec(
  reset: Callable[..., State],
  step: Callable[..., State],
  observation_size: int,
  action_size: int,
  descriptor_size: int | None,
) -> State:
  """Returns the one shape and dtype of each leaf of an environment's states.

  Environments often start from an int or bool 0 where they later put a float;
  such leaves get the dtype that holds both.
  """
  key = jax.eval_shape(lambda: jax.random.key(0))
  action = jax.ShapeDtypeStruct((action_size,), jnp.float32)
  spec = _traced("reset", reset, key)
  _check_fields(spec, observation_size, descriptor_size)
  # Twice: the wider dtypes found in the first round may widen others.
  for _ in range(2):
    widened = _widened(spec, _traced("step", step, spec, action))
    before, after = _leaves(spec), _leaves(widened)
    changes = [name for name, leaf in before.items() if leaf != after[name]]
    if not changes:
      return spec
    spec = widened
  raise ValueError(
    f"env.step widens the dtype at every step of {', '.join(changes)}; return "
    "the dtype that was passed in."
  )


def _traced(
  name: str, method: Callable[..., State], *args: types.Tree
) -> State:
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
      "write it with jax.numpy, with jnp.where instead of `if`."
    ) from error
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)


def _check_fields(
  spec: State, observation_size: int, descriptor_size: int | None
) -> None:
  """Checks the fields that the rest of the package reads."""
  for name in ("obs", "reward", "done", "metrics", "info", "replace"):
    if not hasattr(spec, name):
      raise ValueError(
        f"env.reset returns {type(spec).__name__} without {name!r}; return an "
        "environments.State or brax's State."
      )
  if not isinstance(spec.info, Mapping):
    raise ValueError(
      f"info is a {type(spec.info).__name__}; return a dict of arrays by name."
    )
  if "first_obs" in spec.info:
    raise ValueError(
      "env resets itself (info['first_obs']), which hides the last observation "
      "of an episode; give it without brax's AutoResetWrapper."
    )
  fields = _fields(spec)
  name = "info['state_descriptor']"
  if descriptor_size is None:
    # Of any size, as long as it's a vector.
    descriptor_size = (getattr(fields.get(name), "shape", None) or (1,))[0]
  elif name not in fields:
    raise ValueError(
      f"descriptor has {descriptor_size} axes, but env.reset returns no "
      f"{name}; return it, or give descriptor=None."
    )
  shapes = {"obs": (observation_size,), name: (descriptor_size,)}
  for field, value in fields.items():
    _check_field(field, value, shapes.get(field, ()))


def _check_field(name: str, value: object, shape: tuple[int, ...]) -> None:
  """Refuses a field that isn't one array of real numbers of that shape."""
  if not isinstance(value, jax.ShapeDtypeStruct):
    raise ValueError(f"{name} is a {type(value).__name__}; return one array.")
  if value.shape != shape:
    meaning = "a vector" if shape else "a scalar"
    raise ValueError(
      f"{name} has shape {value.shape} instead of {shape}; return {meaning}, "
      "or correct the size that the environment declares."
    )
  real = (jnp.floating, jnp.integer, jnp.bool_)
  if not any(jnp.issubdtype(value.dtype, kind) for kind in real):
    raise ValueError(f"{name} has dtype {value.dtype}; return real numbers.")


def _fields(state: State) -> dict[str, types.Array]:
  """Returns the fields of a state that the rest of the package reads."""
  named = {"obs": state.obs, "reward": state.reward, "done": state.done}
  for name in ("truncation", "state_descriptor"):
    if name in state.info:
      named[f"info['{name}']"] = state.info[name]
  return named


def _widened(spec: State, stepped: State) -> State:
  """Returns `spec` with the dtypes that also hold what a step returned."""
  before, after = _leaves(spec), _leaves(stepped)
  structures: list[Any] = [jax.tree.structure(x) for x in (spec, stepped)]
  if structures[0] != structures[1]:
    differing = ", ".join(sorted(set(before) ^ set(after)))
    raise ValueError(
      "env.reset and env.step return different structures: only one of them "
      f"has {differing or 'the same tree type'}; return the same fields and "
      "keys from both."
    )
  for path, leaf in before.items():
    if leaf.shape != after[path].shape:
      raise ValueError(
        f"env.reset and env.step return different shapes: {path} "
        f"{list(leaf.shape)} -> {list(after[path].shape)}; return the same "
        "from both."
      )

  def promote(
    a: jax.ShapeDtypeStruct, b: jax.ShapeDtypeStruct
  ) -> jax.ShapeDtypeStruct:
    if a.dtype == b.dtype:  # Of a key, for one, which can't be promoted.
      return a
    return jax.ShapeDtypeStruct(a.shape, jnp.promote_types(a.dtype, b.dtype))

  return jax.tree.map(promote, spec, stepped)


def _leaves(tree: types.Tree) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns leaves by path."""
  flat = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path): leaf for path, leaf in flat}


def check_values(env: BatchedEnvironment) -> None:
  """Runs one instance for a few steps with random actions, and looks at it."""

  @jax.jit
  def run(key: types.Key) -> tuple[dict, dict]:
    def step(state: State, action: types.Array) -> tuple[State, dict]:
      state = env.advance(state, action)
      return state, _fields(state.pipeline_state)

    reset_key, action_key = jax.random.split(key)
    state = env.reset(reset_key)
    actions = jax.random.uniform(
      action_key, (_NUM_STEPS, env.action_size), minval=-1.0, maxval=1.0
    )
    # The fields as the environment itself returned them.
    first = _fields(state.pipeline_state)
    return first, jax.lax.scan(step, state, actions)[1]

  first, later = jax.device_get(run(jax.random.key(0)))
  _check_values("env.reset", first)
  for t in range(_NUM_STEPS):
    if _check_values("env.step", {name: x[t] for name, x in later.items()}):
      break  # Steps after the end aren't used.


def _check_values(method: str, values: dict[str, np.ndarray]) -> bool:
  """Checks the fields of one state; returns whether an episode ends in it."""
  ends = False
  for name, value in values.items():
    value = np.asarray(value, np.float64)
    for index in np.argwhere(~np.isfinite(value))[:1]:
      number = float(value[tuple(index)])
      place = f"{name}{list(index.tolist())}" if index.size else name
      raise ValueError(
        f"{method} returned {'NaN' if np.isnan(number) else number} in "
        f"{place}; return finite numbers."
      )
    if name in ("done", "info['truncation']"):
      if value not in (0, 1) or (value and method == "env.reset"):
        raise ValueError(
          f"{method} returned {name}={value:g}; return 1 where a step ends an "
          "episode, else 0, and 0 at a reset."
        )
      ends |= bool(value)
  return ends
