"""Robots as files describe them: reading one, and choosing its physics."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

import jax
import numpy as np

from qdrl_haiku import names
from qdrl_haiku.environments.suites import brax_loading

if TYPE_CHECKING:
  import mujoco
  from brax.base import System

BACKENDS = ("spring", "positional", "generalized", "mjx", "warp")
# Features that brax's own pipelines silently ignore: the name, the element or
# the attribute in the file, and whether a model has it.
_MJX_ALONE: tuple[tuple[str, str, Callable[["mujoco.MjModel"], bool]], ...] = (
  ("tendons", "tendon", lambda m: m.ntendon > 0),
  ("equality constraints", "equality", lambda m: m.neq > 0),
  ("actuators with a state", "actuator", lambda m: m.na > 0),
  ("friction in joints", "frictionloss", lambda m: m.dof_frictionloss.any()),
  ("compensation of gravity", "gravcomp", lambda m: m.body_gravcomp.any()),
  ("mocap bodies", "mocap", lambda m: m.nmocap > 0),
  ("limits of joints' forces", "actuatorfrcrange",
    lambda m: m.jnt_actfrclimited.any()),
  ("springs that rest elsewhere", "springref",
    lambda m: m.jnt_stiffness.any() and (m.qpos_spring != m.qpos0).any()),
  ("actuators of free joints", "actuator",
    lambda m: (
      m.jnt_type[m.actuator_trnid[m.actuator_trntype == 0, 0]] == 0).any()),
  ("bodies with more than three joints", "", lambda m: max(m.body_jntnum) > 3),
  # Those that nothing refers to are parts of others here.
  ("bodies without joints that sensors or contacts refer to", "",
    lambda m: not all(m.body_jntnum[1:])))
# What spring and positional silently ignore, though most files have it: the
# attribute of joints in the file, and MuJoCo's field.
_LEFT_OUT = {
  "armature": "dof_armature", "damping": "dof_damping",
  "stiffness": "jnt_stiffness"}
_NUMBER_OF_SPRING = "constraint_stiffness"


@dataclasses.dataclass(frozen=True)
class RobotModel:
  """Holds what is known of a robot before it's simulated."""

  path: str  # Of its file.
  sys: "System"  # Brax's system, with MuJoCo's model in `sys.mj_model`.
  backend: str  # The physics that simulates it.
  reason: str  # Why that, and not another, in a few words.

  @property
  def mj_model(self) -> "mujoco.MjModel":
    """MuJoCo's model, with bodies that can't move as parts of others.

    In mjx, bodies that sensors or contacts refer to stay what they are.
    """
    return self.sys.mj_model

  @property
  def left_out(self) -> list[str]:
    """Lists what joints have in the file, and not in this physics."""
    return _left_out(self.backend, self.mj_model)

  @property
  def root(self) -> str:
    """The name of the first body that can move, which others hang from."""
    return self.names("body")[self.mj_model.jnt_bodyid[0]]

  def names(self, kind: str) -> list[str]:
    """Returns the names of all "body", "joint", "geom", "site" or "sensor"."""
    return element_names(self.mj_model, kind)

  def element(self, kinds: Sequence[str], name: str) -> tuple[str, Any]:
    """Returns the first kind with an element of that name, and the element."""
    for kind in kinds:
      if name in self.names(kind):
        return kind, getattr(self.mj_model, kind)(name)
    known = [x for kind in kinds for x in self.names(kind) if x]
    raise ValueError(
      f"{self.path} has no {' or '.join(kinds)} {name!r}, which the task asks "
      f"for; {names.nearest_name(name, known)}")


def element_names(model: "mujoco.MjModel", kind: str) -> list[str]:
  """Returns the names of all elements of a kind in MuJoCo's model."""
  count = {"body": "nbody", "joint": "njnt", "actuator": "nu"}
  element = getattr(model, kind)
  number = getattr(model, count.get(kind, f"n{kind}"))
  return [element(i).name for i in range(number)]


def read_robot(path: str, backend: str | None = None) -> RobotModel:
  """Reads a robot, and chooses its physics.

  Args:
    path: of MuJoCo's XML, or of a URDF; each hinge and slide of a URDF gets a
      motor as strong as its effort limit.
    backend: one of `BACKENDS`. By default mjx, MuJoCo's own and the most
      exact, if the file needs a feature that others lack; else spring, if the
      file has its numbers (constraint_stiffness and others in <custom>),
      without which many robots fly away; else positional, many times faster
      than mjx. Both leave out joints' armature, damping and stiffness.

  Returns:
    The robot. Its first keyframe, if there is one, is how episodes begin:
    positions, velocities, actuators' states and mocap bodies.

  Raises:
    ValueError: if the file can't be read, has no actuator, or asks for what
      the physics lacks; it names the element's line.
  """
  if backend is not None and backend not in BACKENDS:
    raise ValueError(
      f"backend={backend!r} is unknown; {names.nearest_name(backend, BACKENDS)}"
    )
  if not pathlib.Path(path).is_file():
    raise ValueError(
      f"env_name={path!r} is no file; give the path of a robot's XML.")
  brax_loading.import_brax()
  import mujoco
  from brax.io import mjcf

  try:
    spec = mujoco.MjSpec.from_file(path)
    # brax knows no bodies without joints.
    spec.compiler.fusestatic = True
    for i, body in enumerate(spec.bodies):
      body.name = body.name or f"unnamed_{i}"
    if path.endswith(".urdf"):
      _add_motors(spec)
    model = spec.compile()
  except ValueError as error:
    raise ValueError(
      f"{path}: MuJoCo can't read it: {_line(error)}.") from error
  _check_can_learn(path, model)
  if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY:
    model.opt.gravity = 0.0  # brax's own physics doesn't know the flag.
  lacks = _lacks(path, model, mjcf)
  if lacks and backend not in (None, "mjx", "warp"):
    raise ValueError(
      f"{path} has {lacks}, which {backend} can't simulate; leave backend out, "
      "or give mjx.")
  chosen, reason = _choose_backend(backend, lacks, model)
  ctrl_ranges = np.array(model.actuator_ctrlrange)
  if model.nkey:  # Where they are in an episode is where MuJoCo has them first.
    is_mocap = model.body_mocapid >= 0
    model.body_pos[is_mocap] = model.key_mpos[0].reshape(-1, 3)
    model.body_quat[is_mocap] = model.key_mquat[0].reshape(-1, 4)
  try:
    sys = mjcf.load_model(model)
  except (NotImplementedError, RuntimeError) as error:
    raise ValueError(
      f"{path}: MJX can't simulate it ({_line(error)}); leave that out of the "
      "file.") from error
  model.actuator_ctrlrange[:] = ctrl_ranges  # brax forgets those of unlimited.
  if model.nkey:
    sys = sys.replace(init_q=np.asarray(model.key_qpos[0], np.float32))
  return RobotModel(path, sys, chosen, reason)


def _add_motors(spec: "mujoco.MjSpec") -> None:
  """Gives hinges and slides of a URDF, which knows no motors, their effort."""
  import mujoco

  # Others, as of a root that floats, can't be turned by a motor.
  kinds = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE
  for joint in [x for x in spec.joints if x.type in kinds]:
    motor = spec.add_actuator(name=joint.name, target=joint.name)
    motor.trntype = mujoco.mjtTrn.mjTRN_JOINT
    motor.gear[0] = joint.actfrcrange[1] or 1.0
    motor.ctrlrange = (-1.0, 1.0)
    joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE


def _check_can_learn(path: str, model: "mujoco.MjModel") -> None:
  """Refuses a robot that lacks what each needs."""
  lacks = ""
  if not model.opt.timestep > 0:
    line = _line_of(path, "timestep")
    lacks = f"time step{line}; give one, such as <option timestep='0.005'/>"
  elif not model.njnt:
    lacks = "joint, so nothing of it moves; add one"
  elif not model.nu:
    joints = zip(element_names(model, "joint"), model.jnt_type, strict=True)
    hinge = next((name for name, kind in joints if name and kind >= 2), "...")
    lacks = (
      "actuator, so nothing can be learned; add one, such as <actuator><motor "
      f"joint={hinge!r}/></actuator>")
  elif not model.ngeom:
    lacks = (
      "shape that touches anything; add one, such as <geom size='0.1'/> or, in "
      "a URDF, <collision>")
  if lacks:
    raise ValueError(f"{path} has no {lacks}.")


def _choose_backend(
  backend: str | None, lacks: str, model: "mujoco.MjModel"
) -> tuple[str, str]:
  """Chooses a robot's physics, and says why; see `read_robot`."""
  chosen, reason = "positional", "which is faster than mjx and less exact"
  if backend:
    chosen, reason = backend, "as was asked for"
    if backend == "warp" and jax.default_backend() != "gpu":
      reason += "; without an NVIDIA card it's far slower than mjx"
  elif lacks:
    chosen, reason = "mjx", f"faster ones lack {lacks}"
  elif _NUMBER_OF_SPRING in element_names(model, "numeric"):
    chosen, reason = "spring", f"the file has its {_NUMBER_OF_SPRING}"
  if has := _left_out(chosen, model):
    reason += (
      f"; it leaves out joints' {' and '.join(has)}, which generalized and mjx "
      "have")
  return chosen, reason


def _left_out(backend: str, model: "mujoco.MjModel") -> list[str]:
  """Returns what joints have in a model, and not in a physics."""
  if backend not in ("spring", "positional"):
    return []
  return [x for x, field in _LEFT_OUT.items() if getattr(model, field).any()]


def _lacks(path: str, model: "mujoco.MjModel", mjcf: ModuleType) -> str:
  """Returns what brax's own physics lacks, with its line; "" if nothing."""
  for name, word, is_there in _MJX_ALONE:
    if is_there(model):
      return f"{name}{_line_of(path, word)}"
  try:
    mjcf.validate_model(model)
  except (NotImplementedError, RuntimeError) as error:
    return f"what brax's own physics refuses ({_line(error)})"
  return ""


def _line_of(path: str, word: str) -> str:
  """Returns " (line N)" of the first element or attribute of a name."""
  lines: list[int] = []
  parser = expat.ParserCreate()

  def start(element: str, attributes: dict[str, str]) -> None:
    if word == element or word in attributes:
      lines.append(parser.CurrentLineNumber)

  parser.StartElementHandler = start
  parser.Parse(pathlib.Path(path).read_bytes(), True)
  return f" (line {lines[0]})" if lines else ""


def _line(error: Exception) -> str:
  """Returns an error's message as one line without a full stop."""
  return " ".join(str(error).split()).rstrip(".")
