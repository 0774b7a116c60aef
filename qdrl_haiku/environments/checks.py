"""Checks of what an environment returns, made when it is wrapped.

They only trace, so they cost no physics; a mistake in a user's environment is
then reported by the name of the field, not as a failed scan in a learner. The
numbers themselves are looked at in `value_checks`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


def check_interface(env: Any) -> None:
  """Checks that an object is an environment of one instance."""
  needed = _advice(env)
  if inspect.isclass(env):
    raise ValueError(f"env={env.__name__} is a class; {needed}")
  if hasattr(env, "advance") and hasattr(env, "episode_steps"):
    raise ValueError(
      f"env={type(env).__name__} is any number of instances already, as "
      "environments.create returns them; use it as it is."
    )
  _check_has_no_vmap(env)
  for name, num_arguments in (("reset", 1), ("step", 2)):
    method = getattr(env, name, None)
    if not callable(method):
      raise ValueError(
        f"env={type(env).__name__} has no method {name!r}; {needed}"
      )
    try:
      inspect.signature(method).bind(*range(num_arguments))
    except ValueError:  # Of what is written in C, it isn't known.
      pass
    except TypeError as error:
      raise ValueError(
        f"env.{name} of {type(env).__name__} takes other arguments ({error}); "
        f"{needed}"
      ) from error
  for name in ("observation_size", "action_size"):
    # Of the class: brax computes the one by a reset.
    if not hasattr(type(env), name) and not hasattr(env, name):
      raise ValueError(f"env={type(env).__name__} has no {name!r}; {needed}")


def _advice(env: Any) -> str:
  """Says what to give in the place of something that isn't an instance."""
  kind = env if inspect.isclass(env) else type(env)
  packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
  if packages & {"gym", "gymnasium"}:
    # Of an environment, or of what Gymnasium's registry says about one.
    spec = getattr(env, "spec", env)
    env_id = getattr(spec, "id", None)
    if env_id is None or getattr(spec, "additional_wrappers", None):
      return (
        "environments of Gymnasium are made by name, as many as are needed: "
        "gymnasium.register('Mine-v0', ...) with the class, or a function that "
        "makes it and its wrappers, and give 'gymnasium:Mine-v0'."
      )
    return (
      "environments of Gymnasium are made by name, as many as are needed: give "
      f"'gymnasium:{env_id}'."
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


def _check_has_no_vmap(env: Any) -> None:
  """Refuses brax's wrappers that make a batch of instances."""
  inner = env
  while inner is not None:
    name = type(inner).__name__
    if name.endswith("VmapWrapper"):
      raise ValueError(
        f"env={type(env).__name__} is a batch of instances already; give the "
        f"environment of one instance, without brax's {name}."
      )
    inner = getattr(inner, "env", None)


def read_size(env: Any, name: str) -> int:
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
  reset: Callable[..., Any], step: Callable[..., Any], action_size: int
) -> Any:
  """Returns the one shape and dtype of each leaf of an environment's states.

  Environments often start from an int or bool 0 where they later put a float;
  such leaves get the dtype that holds both.
  """
  key = jax.eval_shape(lambda: jax.random.key(0))
  action = jax.ShapeDtypeStruct((action_size,), jnp.float32)
  spec = jax.tree.map(_strong, _traced("reset", reset, key))
  for attribute in ("obs", "reward", "done", "metrics", "info", "replace"):
    if not hasattr(spec, attribute):
      raise ValueError(
        f"env.reset returns {type(spec).__name__} without {attribute!r}; "
        "return an environments.State or brax's State."
      )
  if not isinstance(spec.info, Mapping):
    raise ValueError(
      f"info is a {type(spec.info).__name__}; return a dict of arrays by name."
    )
  for attribute in ("obs", "reward", "done"):
    _check_is_array(attribute, getattr(spec, attribute))
  # Twice: the wider dtypes found in the first round may widen others.
  for _ in range(2):
    stepped = jax.tree.map(_strong, _traced("step", step, spec, action))
    widened = _widen(spec, stepped)
    changes = _differences(spec, widened)
    if not changes:
      return spec
    spec = widened
  raise ValueError(
    f"env.step widens the dtype at every step: {changes}; return the dtype "
    "that was passed in."
  )


def check_spec(
  spec: Any, observation_size: int, descriptor_size: int | None
) -> None:
  """Checks the fields that the rest of the package reads."""
  _check_array("obs", spec.obs, (observation_size,), "[observation_size]")
  _check_array("reward", spec.reward, (), "a scalar")
  _check_array("done", spec.done, (), "a scalar")
  if "first_obs" in spec.info:
    raise ValueError(
      "env resets itself (info['first_obs']), which hides the last observation "
      "of an episode; give it without brax's AutoResetWrapper."
    )
  if "truncation" in spec.info:
    _check_array(
      "info['truncation']", spec.info["truncation"], (), "a scalar"
    )
  descriptor = spec.info.get("state_descriptor")
  if descriptor is None:
    if descriptor_size is not None:
      raise ValueError(
        f"descriptor has {descriptor_size} axes, but env.reset returns no "
        "info['state_descriptor']; return it, or give descriptor=None."
      )
    return
  size = descriptor_size
  if size is None:
    size = descriptor.shape[0] if getattr(descriptor, "ndim", 0) else 1
  _check_array("info['state_descriptor']", descriptor, (size,), "[D]")
  if descriptor.dtype != jnp.float32:
    raise ValueError(
      f"info['state_descriptor'] has dtype {descriptor.dtype}; return float32."
    )


def _traced(name: str, method: Callable[..., Any], *args: Any) -> Any:
  """Returns the shapes that a method returns."""
  try:
    return jax.eval_shape(method, *args)
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


def _check_array(
  name: str, spec: Any, shape: tuple[int, ...], meaning: str
) -> None:
  _check_is_array(name, spec)
  if spec.shape != shape:
    raise ValueError(
      f"{name} has shape {spec.shape} instead of {shape}; return {meaning}, or "
      "correct the size that the environment declares."
    )
  is_number = jnp.issubdtype(spec.dtype, jnp.number) and not jnp.issubdtype(
    spec.dtype, jnp.complexfloating
  )
  if not is_number and spec.dtype != jnp.bool_:
    raise ValueError(f"{name} has dtype {spec.dtype}; return real numbers.")


def _check_is_array(name: str, spec: Any) -> None:
  if not isinstance(spec, jax.ShapeDtypeStruct):
    raise ValueError(f"{name} is a {type(spec).__name__}; return one array.")


def _strong(x: Any) -> jax.ShapeDtypeStruct:
  """Drops the weak type, which is not to survive into a state."""
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _widen(spec: Any, stepped: Any) -> Any:
  """Returns `spec` with the dtypes that also hold what a step returned."""
  structures: list[Any] = [jax.tree.structure(t) for t in (spec, stepped)]
  if structures[0] != structures[1]:
    differing = set(_leaves(spec)) ^ set(_leaves(stepped))
    raise ValueError(
      "env.reset and env.step return different structures: only one of them "
      f"has {', '.join(sorted(differing)) or 'the same tree type'}; return the "
      "same fields and keys from both."
    )

  def promote(a: Any, b: Any) -> jax.ShapeDtypeStruct:
    if a.shape != b.shape:
      raise ValueError(
        "env.reset and env.step return different shapes: "
        f"{_differences(spec, stepped)}; return the same from both."
      )
    if a.dtype == b.dtype:  # Of a key, for one, which can't be promoted.
      return a
    return jax.ShapeDtypeStruct(a.shape, jnp.promote_types(a.dtype, b.dtype))

  return jax.tree.map(promote, spec, stepped)


def _leaves(tree: Any) -> dict[str, Any]:
  """Returns leaves by path."""
  flat, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(path): leaf for path, leaf in flat}


def _differences(before: Any, after: Any) -> str:
  """Describes the leaves that differ between two trees of one structure."""
  after_leaves = _leaves(after)
  return ", ".join(
    f"{path} {leaf.dtype}{list(leaf.shape)} -> "
    f"{after_leaves[path].dtype}{list(after_leaves[path].shape)}"
    for path, leaf in _leaves(before).items() if leaf != after_leaves[path]
  )
