"""Environments by name, and their defaults."""

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from qdrl_haiku import names as names_lib
from qdrl_haiku.environments import (
  ant_trap,
  base,
  brax_loading,
  feet_contact,
  functions,
  gymnasium_vector,
  omnidirectional,
  playground,
  point_maze,
  value_checks,
)

BACKENDS = ("generalized", "spring", "positional", "mjx")


class Defaults(NamedTuple):
  """Holds the defaults of `create` for an environment.

  Attributes:
    episode_length: in steps of the environment itself.
    backend: of brax's physics, or None where there is none.
    backends: those that the environment can do.
  """

  episode_length: int
  backend: str | None = None
  backends: tuple[str, ...] = BACKENDS


# brax measures all of its environments over 1,000 steps. Hopper, walker2d,
# halfcheetah and ant have the backend that SAC learns most in; in spring, the
# fastest, the first two stand still. Small mechanisms are as fast in
# generalized coordinates, and more exact. The humanoids were not compared.
DEFAULTS: dict[str, Defaults] = {
  "ant": Defaults(1000, "spring"),
  "arm": Defaults(1, backends=()),
  "fast": Defaults(1000),
  "halfcheetah": Defaults(1000, "mjx"),
  "hopper": Defaults(1000, "generalized"),
  "humanoid": Defaults(1000, "spring"),
  "humanoidstandup": Defaults(1000, "spring"),
  "inverted_double_pendulum": Defaults(1000, "generalized"),
  "inverted_pendulum": Defaults(1000, "generalized"),
  "point_maze": Defaults(100, backends=()),
  "pusher": Defaults(1000, "generalized"),
  "rastrigin": Defaults(1, backends=()),
  "reacher": Defaults(1000, "generalized"),
  "sphere": Defaults(1, backends=()),
  "swimmer": Defaults(1000, "generalized", ("generalized",)),
  "walker2d": Defaults(1000, "mjx"),
}
_USERS = Defaults(1000)
_OURS: dict[str, Callable[..., Any]] = {
  "arm": functions.arm,
  "point_maze": point_maze.PointMaze,
  "rastrigin": functions.rastrigin,
  "sphere": functions.sphere,
}
# Which of brax's environments is wrapped, and how.
_ON_BRAX: dict[str, tuple[str, Callable[[Any], Any]]] = {
  "ant_trap": ("ant", ant_trap.with_trap),
  **{
    f"{robot}_uni": (
      robot, functools.partial(feet_contact.with_feet_contact, robot=robot)
    )
    for robot in feet_contact.ROBOTS
  },
  **{
    f"{robot}_omni": (
      robot, functools.partial(omnidirectional.with_any_direction, robot=robot)
    )
    for robot in omnidirectional.REWARD_OFFSETS
  },
}
DEFAULTS |= {name: DEFAULTS[robot] for name, (robot, _) in _ON_BRAX.items()}
# What stands before the colon of environments from elsewhere; before that of a
# user's own stands a module.
_ELSEWHERE: dict[str, Callable[..., Any]] = {
  "gymnasium": gymnasium_vector.create,
  "playground": playground.create,
}
# What else is written before the colon, and what is meant by it.
_PREFIXES = {
  "brax": "",
  "gym": "gymnasium:",
  "gymnasium": "gymnasium:",
  "mujoco_playground": "playground:",
  "playground": "playground:",
}


def names() -> tuple[str, ...]:
  """Returns the names that `create` knows, in alphabetical order.

  Returns:
    Those of brax and of this package, and what has been registered by
    `brax.envs.register_environment`.
  """
  return tuple(sorted({*DEFAULTS, *_registered()}))


def create(
  env_name: str | Any,
  *,
  backend: str | None = None,
  episode_length: int | None = None,
  action_repeat: int = 1,
  sizes: tuple[int, int] | None = None,
  **kwargs: Any,
) -> Any:
  """Creates an environment, of which there can be any number of instances.

  Args:
    env_name: one of `names()`: brax's own, and what was registered by
      `brax.envs.register_environment`; `<robot>_uni` (walk forwards, the
      descriptor is the share of time that each foot touches the ground),
      `<robot>_omni` (walk anywhere, the final position), `ant_trap` (a dead
      end, the final position), `point_maze` (likewise); `arm`, `rastrigin`,
      `sphere`, functions of an action without physics. Or "playground:"
      and a name in MuJoCo Playground, such as CartpoleBalance. Or "gymnasium:"
      and an id in Gymnasium, such as Pendulum-v1. Or
      "package.module:function", a function that returns one instance;
      `names_lib.load_function` says where it is found. Or one instance itself.
    backend: of brax's physics, one of `BACKENDS`; by default as in `DEFAULTS`.
      A user's function gets it if it has a parameter of that name.
    episode_length: truncates episodes, in steps of the environment itself
      (before `action_repeat`), at least 1. By default as in `DEFAULTS`, as
      Playground or Gymnasium have it, and 1,000 for a user's own.
    action_repeat: how often each action is applied, at least 1.
    sizes: of observations and actions, where the same environment of ours has
      passed the checks before.
    **kwargs: for the environment's constructor, or the user's function, or in
      Playground what replaces parts of the environment's configuration.

  Returns:
    An `Environment`, or of Gymnasium a `GymnasiumEnvironment`.

  Raises:
    ValueError: if the name, the backend or an argument isn't known, if a
      number is out of range, or if what the environment returns does not fit
      what it declares; of a user's own also if that isn't finite.
  """
  if not isinstance(env_name, str):
    if backend is not None or kwargs:
      given = ", ".join([*kwargs, *(["backend"] if backend else [])])
      raise ValueError(
        f"{given} has no effect on an environment that exists; leave it out."
      )
    if "mujoco" in sys.modules:  # What made it may step MuJoCo.
      brax_loading.redirect_mujocos_warnings()
    if episode_length is None:
      episode_length = _USERS.episode_length
    env = base.Environment(
      playground.adapted(env_name),
      episode_length=episode_length,
      action_repeat=action_repeat,
    )
    value_checks.check_values(env)
    return env
  place, colon, name = env_name.partition(":")
  if colon:
    # Nobody knows what others' modules read and step.
    brax_loading.redirect_mujocos_warnings()
  if colon and place in _ELSEWHERE:
    return _ELSEWHERE[place](
      name,
      backend=backend,
      episode_length=episode_length,
      action_repeat=action_repeat,
      **kwargs,
    )
  _check_name(env_name)
  is_users = bool(colon) or env_name in _registered()
  defaults = _USERS if is_users else DEFAULTS[env_name]
  if backend is not None and backend not in defaults.backends:
    fix = names_lib.nearest(backend, defaults.backends)
    raise ValueError(
      f"backend={backend!r} is not one of {env_name!r}; "
      f"{fix if defaults.backends else 'leave it out.'}"
    )
  backend = defaults.backend if backend is None else backend
  if backend is not None:
    kwargs["backend"] = backend
  if episode_length is None:
    episode_length = defaults.episode_length

  def wrap(env: Any) -> base.Environment:
    wrapped = base.Environment(
      playground.adapted(env),
      episode_length=episode_length,
      action_repeat=action_repeat,
      sizes=sizes,
    )
    if is_users:
      value_checks.check_values(wrapped)
    return wrapped

  if colon or env_name in _OURS:
    function = names_lib.load_function(env_name) if colon else _OURS[env_name]
    _check_arguments(env_name, function, kwargs)
    return wrap(function(**kwargs))
  brax_name, change = _ON_BRAX.get(env_name, (env_name, lambda env: env))
  with brax_loading.quiet_brax():
    env_class = brax_loading.brax_class(brax_name)
    # brax's constructors hand what they don't know to their base class, whose
    # complaint names neither the environment nor what it takes.
    _check_arguments(
      env_name,
      env_class,
      kwargs,
      () if is_users else ("backend", "n_frames", "debug"),
    )
    return wrap(change(env_class(**kwargs)))


def _registered() -> set[str]:
  """Returns the names of what users have registered with brax."""
  # Where nobody has imported brax, nobody has registered anything.
  known: dict[str, Any] = getattr(sys.modules.get("brax.envs"), "_envs", {})
  return {
    name
    for name, env_class in known.items()
    if name not in {*_OURS, *_ON_BRAX}
    # One of brax's own names may have been given to another class.
    and not (name in DEFAULTS and env_class.__module__.startswith("brax."))
  }


def _check_name(env_name: str) -> None:
  """Refuses an unknown name, and says what could be meant by it."""
  place, colon, name = env_name.partition(":")
  if not colon and env_name in names():
    return
  prefixes = difflib.get_close_matches(place.lower(), _PREFIXES, 1)
  is_exact = place.lower() in _PREFIXES
  if colon and (is_exact or (prefixes and not name.isidentifier())):
    fix = f"did you mean {_PREFIXES[prefixes[0]] + name!r}?"
  elif re.search(r"-v\d+$", env_name):
    fix = f"did you mean 'gymnasium:{env_name}'?"
  elif colon:  # A user's function, which is looked for later.
    return
  else:
    fix = names_lib.nearest(env_name, names())
  raise ValueError(
    f"env_name={env_name!r} is unknown; {fix} Your own is given as "
    "'package.module:function', others as 'gymnasium:<id>' or "
    "'playground:<name>'."
  )


def _check_arguments(
  env_name: str,
  function: Callable[..., Any],
  kwargs: dict[str, Any],
  of_base_class: tuple[str, ...] = (),
) -> None:
  """Checks that a function can be called with some keyword arguments."""
  signature = inspect.signature(function)
  known = [
    name for name, parameter in signature.parameters.items()
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD
  ] + [name for name in of_base_class if name not in signature.parameters]
  takes_any = len(known) < len(signature.parameters) and not of_base_class
  for name in kwargs:
    if name not in known and not takes_any:
      raise ValueError(
        f"{name}={kwargs[name]!r} is no argument of {env_name!r}; "
        f"{names_lib.nearest(name, known)}"
      )
  try:
    signature.bind(**kwargs)
  except TypeError as error:
    raise ValueError(
      f"env_name={env_name!r}: {error}; give it, or a default."
    ) from error
