"""Tests of what is shown of agents with skills."""

import jax
import numpy as np
import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import skill_figures
from qdrl_haiku.runs import skill_files
from qdrl_haiku.storage.directory import RunDirectory
from tests.training import skill_common


def _run(path, prior=skill_common.PRIOR, env=skill_common.WALK, **config):
  """A run that evaluated the same skills twice."""
  _, evaluation, _ = skill_common.evaluated(prior, env, **config)
  directory = RunDirectory(path)
  directory.begin({"learner": "diayn"})
  for generation in (1, 2):
    step = 100 * generation
    skill_files.write(
      directory, generation, step, evaluation, env.descriptor
    )
    row = {"generation": generation, "step": step, "diayn/state_coverage": 3.0}
    directory.append("metrics.jsonl", [row | {"diayn/x/seed_0": 1.0}])
  (run,) = reports.read_runs([str(path)])
  return run, jax.device_get(evaluation)


@pytest.fixture(scope="module")
def discrete(tmp_path_factory):
  return _run(tmp_path_factory.mktemp("discrete") / "run")


def test_each_episode_goes_where_it_went_in_the_colour_of_its_skill(discrete):
  run, evaluation = discrete
  panels = skill_figures.trajectories(run.path).panels
  size, num = evaluation.returns.shape
  assert [panel.title for panel in panels] == [
    f"member {member}" for member in range(size)
  ]
  colors = {}
  for i in range(size * num):
    member, episode = divmod(i, num)
    trace = panels[member].traces[episode]
    length = evaluation.lengths[member, episode]
    states = evaluation.trajectory["descriptor"][member, episode, :length]
    np.testing.assert_allclose(trace.x, states[:, 0], rtol=1e-5)
    np.testing.assert_allclose(trace.y, states[:, 1], rtol=1e-5)
    assert trace.sizes == [0] * (length - 1) + [8]  # A dot where it ends.
    skill = np.argmax(evaluation.trajectory["skill"][member, episode])
    assert trace.name == f"skill {skill}"
    colors.setdefault(skill, set()).add(trace.color)
  assert all(len(of_one) == 1 for of_one in colors.values())
  assert len(set.union(*colors.values())) == skill_common.NUM_SKILLS
  assert (panels[1].x.title, panels[1].y.title) == ("x", "steps")
  assert panels[1].y.range == (-0.5, 99.5)


def test_each_skill_has_a_curve_of_each_member(discrete):
  run, _ = discrete
  panels = skill_figures.returns(run).panels
  assert len(panels) == 2 * 2  # Members, and two kinds of return.
  traces = panels[0].traces
  assert [x.name for x in traces] == ["skill 0", "skill 1", "skill 2"]
  expected = [
    row["diversity_return"]
    for row in run.skills
    if row["member"] == 0 and row["skill"] == [1, 0, 0]
  ]
  assert traces[0].y == expected
  page = reports.render([run], {}, {})
  assert ">Skills</a>" in page
  assert page.count('class="plot"') == 3


def test_directions_have_ways_but_no_curves(tmp_path):
  run, _ = _run(tmp_path / "run", skill_common.CIRCLE)
  panels = skill_figures.trajectories(run.path).panels
  traces = [trace for panel in panels for trace in panel.traces]
  assert all(trace.name.count(",") == 1 for trace in traces)
  assert len({trace.color for trace in traces}) == len(traces)
  assert skill_figures.returns(run) is None


@pytest.mark.parametrize("skill", [
  [0.7], [-3.0], [1.0], [0.2, -0.1], [0.0, 0.6, 0.8], [0.0, 0.0]
])  # fmt: skip
def test_every_skill_has_a_colour(skill):
  color = skill_figures.color(skill)
  assert len(color) == 7
  # A direction has the same, whatever its length.
  if len(skill) > 1 and sum(map(bool, skill)) > 1:
    assert color == skill_figures.color([2 * x for x in skill])


@pytest.mark.parametrize("env", [skill_common.LINE, skill_common.BLIND])
def test_without_two_axes_there_are_no_ways(env, tmp_path):
  run, _ = _run(tmp_path / "run", env=env, discriminator_input="observation")
  assert skill_figures.trajectories(run.path) is None


def test_a_damaged_file_is_named(tmp_path):
  (tmp_path / "skills.npz").write_bytes(b"nothing")
  with pytest.raises(ValueError, match=r"skills.npz is damaged .*; remove it"):
    skill_figures.trajectories(tmp_path)
  np.savez(tmp_path / "skills.npz", descriptor=np.zeros((1, 1, 1, 2)))
  with pytest.raises(ValueError, match="skills.npz is damaged"):
    skill_figures.trajectories(tmp_path)
