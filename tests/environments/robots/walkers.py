"""Files of robots that walk on legs of one shape each."""

_WALKER = """
<mujoco>
  <option timestep="0.004"/>
  <default>
    <joint type="hinge" axis="0 1 0" range="-60 60" damping="1" armature="0.1"/>
    <geom density="300"/>
    <motor gear="20" ctrlrange="-1 1"/>
  </default>
  <asset><mesh name="wedge" vertex="
    -.06 -.06 -.3  .06 -.06 -.3  .06 .06 -.3  -.06 .06 -.3  0 -.06 0  0 .06 0"/>
  </asset>
  <worldbody>
    <geom type="plane" size="40 40 1"/>
    <body name="torso" pos="0 0 0.75">
      <freejoint/>
      <geom {hull}/>
      <body pos="0 .15 -.1">
        <joint name="left"/>
        <geom {leg}/>
        <body pos="0 0 -.3"><joint name="left_knee"/><geom {leg}/></body>
      </body>
      <body pos="0 -.15 -.1">
        <joint name="right"/>
        <geom {leg}/>
        <body pos="0 0 -.3"><joint name="right_knee"/><geom {leg}/></body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="left"/><motor joint="left_knee"/>
    <motor joint="right"/><motor joint="right_knee"/>
  </actuator>
  {more}
</mujoco>
"""
_LEGS = {
  "box": 'type="box" size=".05 .05 .15" pos="0 0 -.15"',
  "capsule": 'type="capsule" size=".05" fromto="0 0 -.05 0 0 -.25"',
  "cylinder": 'type="cylinder" size=".05 .15" pos="0 0 -.15"',
  "ellipsoid": 'type="ellipsoid" size=".05 .05 .15" pos="0 0 -.15"',
  "mesh": 'type="mesh" mesh="wedge"',
  "sphere": 'type="sphere" size=".1" pos="0 0 -.15"'}
_TENDON = (
  '<tendon><fixed name="both" stiffness="5" damping="1"><joint joint="left" '
  'coef="1"/><joint joint="right" coef="-1"/></fixed></tendon>')
# By name: legs, torso, more.
WALKERS = {
  **{leg: (leg, 'type="sphere" size=".15"', "") for leg in _LEGS},
  "boxes": ("box", 'type="box" size=".1 .2 .1"', ""),
  "tendon": ("capsule", 'type="sphere" size=".15"', _TENDON)}


def write_walker(folder, name):
  """Writes the file of one of `WALKERS`; returns its path."""
  leg, hull, more = WALKERS[name]
  path = folder / f"{name}.xml"
  path.write_text(_WALKER.format(leg=_LEGS[leg], hull=hull, more=more))
  return str(path)
