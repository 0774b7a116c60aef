"""Names the numbers of a robot's generalized coordinates."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
  import mujoco


class Observed(NamedTuple):
  """Says what one number that a policy sees is."""

  name: str  # Of what it is, such as "knee velocity".
  unit: str = ""  # Such as "rad/s"; "" of a number without one.
  # In which it's measured: "world", the "body" itself, its "parent", the
  # "joint" (along or around its axis); "" of a number without one.
  frame: str = ""
  field: str = ""  # Of MuJoCo's data, "qpos" or "qvel", if it stands there.
  place: int = -1  # Its index there.


def along_axes(
  name: str, unit: str, frame: str, axes: str = "xyz"
) -> list[Observed]:
  """Returns what the numbers of a vector are, one per axis.

  Args:
    name: of the vector, such as "velocity".
    unit: of each number.
    frame: in which the vector is measured; see `Observed`.
    axes: a letter for each number.
  """
  return [Observed(f"{name} {axis}", unit, frame) for axis in axes]


_TURNING = along_axes("angular velocity", "rad/s", "body")
# Of each of MuJoCo's types of joints, what qpos and qvel have.
_PARTS = {
  0: ([*along_axes("position", "m", "world"),
       *along_axes("quaternion", "", "world", "wxyz")],
      [*along_axes("velocity", "m/s", "world"), *_TURNING]),
  1: (along_axes("quaternion", "", "parent", "wxyz"), _TURNING),
  2: ([Observed("position", "m", "joint")],
      [Observed("velocity", "m/s", "joint")]),
  3: ([Observed("angle", "rad", "joint")],
      [Observed("velocity", "rad/s", "joint")])}


def generalized_coordinates(mj_model: "mujoco.MjModel") -> list[Observed]:
  """Returns what all of qpos, then all of qvel, is of a model of MuJoCo."""
  found: list[Observed] = []
  for which, field in enumerate(("qpos", "qvel")):
    place = 0
    for joint in map(mj_model.joint, range(mj_model.njnt)):
      whose = joint.name or mj_model.body(int(joint.bodyid[0])).name
      for x in _PARTS[int(joint.type[0])][which]:
        found.append(Observed(
          f"{whose} {x.name}", x.unit, x.frame, field, place))
        place += 1
  return found
