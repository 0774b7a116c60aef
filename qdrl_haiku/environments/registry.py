"""Environments by name, their defaults, and the settings that choose one."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from qdrl_haiku import names as names_lib
from qdrl_haiku.config import Missing, Settings, setting
from qdrl_haiku.environments import (
  functions,
  hiding,
  point_maze,
  randomizing,
  sparse_maze,
  validation,
)
from qdrl_haiku.environments.environment import MAX_EPISODE_LENGTH, Environment
from qdrl_haiku.environments.interface import (
  BatchedEnvironment,
  SingleEnvironment,
)
from qdrl_haiku.environments.robots import BACKENDS, from_mjcf
from qdrl_haiku.environments.suites import (
  brax_loading,
  brax_tasks,
  gym_environment,
  gymnax_environment,
  jumanji_environment,
  playground,
)
from qdrl_haiku.environments.suites.gymnasium_environment import (
  GymnasiumEnvironment,
)
from qdrl_haiku.types import Record

_BACKENDS = ("generalized", "spring", "positional", "mjx")


class Entry(NamedTuple):
  """One environment by name: what makes it, and its defaults."""

  # Imports brax if need be, and returns the constructor of one instance.
  load: Callable[[], Callable[..., SingleEnvironment]]
  episode_length: int = 1000
  # The default backend of brax's physics, or None; and all that may be chosen.
  backend: str | None = None
  backends: tuple[str, ...] = _BACKENDS
  # An instance -> the instance with our own task.
  change: Callable[..., SingleEnvironment] = lambda env: env


# Hopper, walker2d, halfcheetah and ant have the backend that SAC learns most
# in; in spring, the fastest, the first two stand still. Small mechanisms are as
# fast in generalized coordinates, and more exact. The humanoids were not
# compared.
_ROBOTS: dict[str | None, tuple[str, ...]] = {
  None: ("fast",),
  "generalized": (
    "hopper", "inverted_double_pendulum", "inverted_pendulum", "pusher",
    "reacher", "swimmer"),
  "mjx": ("halfcheetah", "walker2d"),
  "spring": ("ant", "humanoid", "humanoidstandup")}
BRAX: dict[str, Entry] = {
  name: Entry(
    functools.partial(brax_loading.load_brax_class, name), backend=backend,
    backends=("generalized",) if name == "swimmer" else _BACKENDS)
  for backend, names in _ROBOTS.items()
  for name in names}
OURS: dict[str, Entry] = {
  "ant_trap": BRAX["ant"]._replace(change=brax_tasks.trap_task),
  "arm": Entry(lambda: functions.arm_function, 1, backends=()),
  "point_maze": Entry(lambda: point_maze.PointMaze, 100, backends=()),
  "rastrigin": Entry(lambda: functions.rastrigin_function, 1, backends=()),
  "rastrigin_pair": Entry(
    lambda: functions.rastrigin_pair_function, 1, backends=()),
  "sparse_maze": Entry(lambda: sparse_maze.SparseMaze, 100, backends=()),
  "sphere": Entry(lambda: functions.sphere_function, 1, backends=())}
for _name, _task, _robots in (
  ("uni", brax_tasks.uni_task, brax_tasks.UNI_ROBOTS),
  ("omni", brax_tasks.omni_task, brax_tasks.OMNI_REWARD_OFFSETS),
):
  for _robot in _robots:
    OURS[f"{_robot}_{_name}"] = BRAX[_robot]._replace(
      change=functools.partial(_task, robot=_robot))
# What makes one instance of other packages' environments in JAX, and says their
# episodes' length, by the prefix before the colon; a user's own function has a
# module before it.
_PACKAGES: dict[str, Callable[..., tuple[SingleEnvironment, int]]] = {
  "gym": gym_environment.make_gym_robot,
  "gymnax": gymnax_environment.make_gymnax_environment,
  "jumanji": jumanji_environment.make_jumanji_environment,
  "playground": playground.make_playground_environment}
_ROBOT_FILES = (".xml", ".urdf")
# Prefixes that users write before the colon, and the right ones.
_PREFIXES = {
  "brax": "", "mujoco_playground": "playground:",
  **{x: f"{x}:" for x in ("gymnasium", *_PACKAGES)}}


def registered_environments() -> tuple[str, ...]:
  """Returns brax's names, registered ones included, and ours, sorted."""
  return tuple(sorted({*BRAX, *OURS, *_registered()}))


def create(
  env_name: str | Any, *, backend: str | None = None,
  episode_length: int | None = None, randomize: Sequence[str] = (),
  hide: Sequence[str] = (), **kwargs: Any,
) -> BatchedEnvironment:
  """Creates an environment, of which there can be any number of instances.

  Args:
    env_name: one of `registered_environments()`: brax's own, and what was
      registered with brax; `<robot>_uni`, `<robot>_omni`, `ant_trap` (see
      `brax_tasks`), `point_maze`; `arm`, `rastrigin`, ... (`functions`).
      Or "playground:" and a name, "gym:" (on MJX), "gymnasium:", "gymnax:" or
      "jumanji:" and an id, or the path of a robot's .xml or .urdf
      (`robots.from_mjcf`). Or "package.module:function", which returns one
      instance, or one instance itself.
    backend: of brax's physics: generalized, spring, positional or mjx; each
      environment has a default. Robots of files and Playground's also have
      warp. A user's function gets it if it takes one.
    episode_length: truncates episodes, at least 1; by default the
      environment's own number, 1,000 for a user's.
    randomize: what differs from episode to episode, such as
      "friction:uniform:0.5:1.5", see `randomizing.randomized`.
    hide: what agents don't see, such as "velocity", see `hiding.what_is_seen`.
    **kwargs: of the environment's constructor or of the user's function.
      brax's robots also take `initial_height` (`brax_tasks.task_from_height`),
      robots of files `task`, and others' environments what
      `playground.make_playground_environment`,
      `gym_environment.make_gym_robot`,
      `gymnax_environment.make_gymnax_environment` and
      `jumanji_environment.make_jumanji_environment` do.

  Returns:
    An `Environment`, or of Gymnasium a `GymnasiumEnvironment`.

  Raises:
    ValueError: if an argument is unknown or out of range, or if the environment
      returns other shapes than it declares, or numbers that aren't finite.
  """
  exists = not isinstance(env_name, str)
  if exists and (backend is not None or kwargs):
    given = ", ".join([*kwargs, *(["backend"] if backend else [])])
    raise ValueError(
      f"{given} has no effect on an environment that exists; leave it out.")
  package, colon, name = ("",) * 3 if exists else env_name.partition(":")
  if colon or "mujoco" in sys.modules:  # Which others' modules may step.
    brax_loading.redirect_brax_mujoco_warnings()
  if colon and package in ("gymnasium", *_PACKAGES):
    has_backends = package == "playground"
    _check_backend(env_name, backend, ("mjx", "warp") if has_backends else ())
    if backend is not None:
      kwargs["backend"] = backend
  if colon and package == "gymnasium":
    if randomize:
      raise ValueError(
        f"randomize={randomize[0]!r} can't be used with Gymnasium's "
        "environments; leave it out.")
    return GymnasiumEnvironment(
      name, episode_length=episode_length, hide=hide, **kwargs)
  is_users = False
  with brax_loading.quiet_brax_loading():  # A user's module may import it.
    if colon and package in _PACKAGES:
      one, length = _PACKAGES[package](name, **kwargs)
    else:
      entry, is_users = _find(env_name)
      _check_backend(env_name, backend, entry.backends)
      if backend or entry.backend:
        kwargs["backend"] = backend or entry.backend
      one = entry.change(_make_one(env_name, entry, kwargs))
      length = entry.episode_length
    one = randomizing.randomized(one, randomize)
    env = Environment(
      hiding.Hidden(one, hide, str(env_name)) if hide else one,
      episode_length=length if episode_length is None else episode_length)
    if is_users:
      validation.check_valid_environment_values(env)
  return env


def _make_one(env_name: str, entry: Entry, kwargs: Record) -> SingleEnvironment:
  """Makes one instance, without the entry's change."""
  # Elsewhere it stays among kwargs, and is refused where it isn't a parameter.
  height = kwargs.pop("initial_height", None) if entry.backend else None
  make = entry.load()
  signature = inspect.signature(make)
  try:
    signature.bind(**kwargs)
  except TypeError as error:
    raise ValueError(
      f"env_name={env_name!r}: {error}; it takes {signature}.") from error
  one = make(**kwargs)
  return one if height is None else brax_tasks.task_from_height(one, height)


def _registered() -> set[str]:
  """Returns the names of what users have registered with brax."""
  # Before brax is imported, nothing can have been registered.
  known: dict[str, type] = getattr(sys.modules.get("brax.envs"), "_envs", {})
  return {
    name
    for name, env_class in known.items()
    if name not in OURS
    # One of brax's own names may have been given to another class.
    and not (name in BRAX and env_class.__module__.startswith("brax."))}


def _find(env_name: str | Any) -> tuple[Entry, bool]:
  """Returns the entry of a name, and whether it's a user's own environment."""
  if not isinstance(env_name, str):
    return Entry(lambda: lambda: env_name), True
  if env_name in _registered():
    return Entry(
      functools.partial(brax_loading.load_brax_class, env_name)), True
  if env_name in OURS or env_name in BRAX:
    return (BRAX | OURS)[env_name], False
  if names_robot_file(env_name):
    return Entry(
      lambda: functools.partial(from_mjcf, env_name), backends=BACKENDS), True
  place, colon, name = env_name.partition(":")
  if colon and place.lower() in _PREFIXES:
    fix = f"did you mean {_PREFIXES[place.lower()] + name!r}?"
  elif re.search(r"-v\d+$", env_name):
    fix = f"did you mean 'gymnasium:{env_name}'?"
  elif colon:
    return Entry(lambda: names_lib.load_named_function(env_name)), True
  else:
    fix = names_lib.nearest_name(env_name, registered_environments())
  raise ValueError(
    f"env_name={env_name!r} is unknown; {fix} Your own is given as "
    "'package.module:function', others as 'gym:<id>', 'gymnasium:<id>', "
    "'gymnax:<id>', 'jumanji:<id>' or 'playground:<name>'.")


def names_robot_file(env_name: str) -> bool:
  """Returns whether an environment's name is that of a robot's file."""
  return env_name.endswith(_ROBOT_FILES)


def _check_backend(
  env_name: str, backend: str | None, backends: tuple[str, ...]
) -> None:
  """Refuses a backend that an environment doesn't have."""
  if backend is not None and backend not in backends:
    fix = (
      names_lib.nearest_name(backend, backends) if backends else "leave it out."
    )
    raise ValueError(f"backend={backend!r} is not one of {env_name!r}; {fix}")


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig(Settings):
  """Names and shapes an environment; see `create`."""

  title = "Environment"

  env_name: str = setting(
    "inverted_pendulum",
    "A brax environment, point_maze, gym:<id> (Gymnasium's robots on MJX), "
    "playground:<name>, gymnasium:<id>, gymnax:<id>, jumanji:<id>, the path of "
    "a robot's .xml or .urdf, or package.module:function, which returns an "
    "object with brax's reset and step.")
  backend: str | None = setting(
    None,
    "Physics of brax: generalized (slow on GPUs), spring, positional or mjx; "
    "of robots of files and Playground's also warp, MuJoCo Warp, for NVIDIA's "
    "cards.")
  episode_length: int | None = setting(
    None,
    "Steps after which an episode is truncated; by default the environment's "
    "own number.",
    low=1, high=MAX_EPISODE_LENGTH)
  env_arguments: tuple[str, ...] = setting(
    (),
    "name=value, for the constructor of an environment with a colon in its "
    "name, or a parameter of gymnax's, such as memory_length=20. Repeatable.",
    flag="env_argument", repeatable=True, needs="arguments")
  initial_height: float | None = setting(
    None,
    "Height of the root of a robot of brax, in metres, where episodes begin; "
    "brax's ant begins at 0.55, in the floor, Gymnasium's at 0.75.",
    above=0, high=100)
  task: str | None = setting(
    None,
    "What a robot of a file is to do: run (the default), stand, reach, or "
    "package.module:function, which returns a Task for a RobotModel.",
    needs="robot")
  randomize: tuple[str, ...] = setting(
    (),
    "name:kind:low:high, drawn for each episode: friction, mass, damping, "
    "armature, stiffness, joint_friction, geom_size, actuator_gain, kp, kd, "
    "gear, gravity, as factors, of all or of some parts (mass/torso, "
    "mass/*leg*); com_x, com_y, com_z, initial_pose (m, rad), slope_x, slope_y "
    "(degrees), push (m/s), push_interval (s); observation_noise, "
    "action_noise, action_delay. Kinds: uniform, log_uniform, choice, fixed. "
    "Repeatable; empty for nothing.",
    repeatable=True)
  pay_anew: bool | None = setting(
    None,
    "Whether rewards in replay are weighed by an agent's tunables when it "
    "learns, not as they were paid; by default where the environment tells the "
    "terms of its reward, as sparse_maze does.",
    needs="decisions")
  hide: tuple[str, ...] = setting(
    (),
    "What agents don't see of observations, separated by commas: velocity, "
    "where it is known which numbers are, indices, or entries of a dict.")
  playground_assets: str | None = setting(
    None,
    "A copy of mujoco_menagerie, in which Playground finds its robots; by "
    "default it downloads one from GitHub.",
    needs="playground", may_change=True)
  maze_layout: str | None = setting(
    None,
    "Walls of point_maze and sparse_maze: maze (the default), open, block, "
    "block_above_shut or block_below_shut.",
    needs="maze")

  def missing(self) -> Mapping[str, Missing]:
    """Returns the parts that the configuration lacks, by name."""
    name = self.env_name
    found = {}
    if not any(self.randomize):
      found["curriculum"] = Missing(
        "no range of --randomize is given that it widens", ("randomize",))
    parts = {
      "arguments": (":" in name, "takes none from command lines"),
      "maze": (name in ("point_maze", "sparse_maze"), "has no layout"),
      "playground": (name.startswith("playground:"), "is none of Playground's"),
      "robot": (names_robot_file(name), "is no robot's file")}
    return found | {
      part: Missing(f"--env_name={name} {why}", ("env_name",))
      for part, (is_there, why) in parts.items()
      if not is_there}

  def in_gymnasium(self) -> Self:
    """Returns the settings of the same task in Gymnasium, by C MuJoCo."""
    prefix, _, name = self.env_name.partition(":")
    if prefix != "gym":
      raise ValueError(
        f"env_name={self.env_name!r} is no task of Gymnasium's on MJX; give "
        "one of 'gym:<id>'.")
    if any(self.randomize):
      raise ValueError(
        f"randomize={self.randomize[0]!r} can't be done in Gymnasium; give "
        "--randomize= too, to leave it out.")
    arguments = (
      x for x in self.env_arguments if not x.startswith("descriptor="))
    return dataclasses.replace(
      self, env_name=f"gymnasium:{name}", env_arguments=tuple(arguments))

  def make(self) -> BatchedEnvironment:
    """Makes the environment; see `create`."""
    more: dict[str, object] = {
      "layout": self.maze_layout, "task": self.task,
      "assets": self.playground_assets, "initial_height": self.initial_height}
    more |= dict(map(_argument, filter(None, self.env_arguments)))
    return create(
      self.env_name, backend=self.backend or None,
      episode_length=self.episode_length,
      randomize=tuple(filter(None, self.randomize)),
      hide=tuple(filter(None, self.hide)),
      **{name: x for name, x in more.items() if x is not None})


def _argument(text: str) -> tuple[str, object]:
  """Returns the name and the value, maybe a word, that "name=value" says."""
  name, equals, value = text.partition("=")
  if not equals:
    raise ValueError(f"env_argument={text!r} says no value; give name=value.")
  with contextlib.suppress(ValueError, SyntaxError):
    return name, ast.literal_eval(value)
  return name, value
