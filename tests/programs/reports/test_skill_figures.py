"""Tests of what is shown of agents with skills."""

import zlib

import numpy as np
import pytest

from qdrl_haiku.programs import reports
from qdrl_haiku.programs.reports import skill_figures
from tests.programs.runs import test_skills


def _run(path):
  """A run of two members that wrote the same five episodes twice."""
  directory, evaluation = test_skills.written(path)
  for generation in (1, 2):
    row = {"generation": generation, "step": 100 * generation}
    row |= {"diayn/state_coverage": 3.0, "diayn/x/seed_0": 1.0}
    directory.append("metrics.jsonl", [row])
  (run,) = reports.read_runs([str(path)])
  return run, evaluation


def test_each_episode_goes_where_it_went_in_the_colour_of_its_skill(tmp_path):
  run, evaluation = _run(tmp_path / "run")
  panels = skill_figures.skill_trajectories_figure(run.path).panels
  assert [panel.title for panel in panels] == ["member 0", "member 1"]
  colors = {}
  for member, episode in np.ndindex(2, 5):
    trace = panels[member].traces[episode]
    length = evaluation.lengths[member, episode]
    states = evaluation.trajectory["descriptor"][member, episode, :length]
    np.testing.assert_array_equal(np.stack([trace.x, trace.y], 1), states)
    assert trace.sizes == [0] * (length - 1) + [8]  # A dot where it ends.
    skill = np.argmax(test_skills.DISCRETE[member, episode])
    assert trace.name == f"skill {skill}"
    colors.setdefault(skill, set()).add(trace.color)
  assert all(len(of_one) == 1 for of_one in colors.values())
  assert len(set.union(*colors.values())) == 3
  assert (panels[1].x.title, panels[1].y.title) == ("x", "steps")
  assert panels[1].y.range == (-0.5, 99.5)
  # Curves are of each member and skill, and of two kinds of return.
  panels = skill_figures.skill_returns_figure(run).panels
  assert len(panels) == 2 * 2
  traces = panels[0].traces
  assert [x.name for x in traces] == ["skill 0", "skill 1", "skill 2"]
  gained = evaluation.trajectory["diversity_return"][0, [0, 3]]
  assert traces[0].y == pytest.approx([gained.mean()] * 2)
  page = reports.render_sections([run], {}, {})
  assert ">Skills</a>" in page
  assert page.count('class="plot"') == 3


def test_a_damaged_file_is_named(tmp_path):
  (tmp_path / "skills.npz").write_bytes(b"nothing")
  with pytest.raises(ValueError, match=r"skills.npz is damaged .*; remove it"):
    skill_figures.skill_trajectories_figure(tmp_path)
  path = tmp_path / "skills.npz"
  np.savez_compressed(path, descriptor=np.arange(64.0))
  content = bytearray(path.read_bytes())
  content[80:90] = bytes(10)
  path.write_bytes(content)
  with pytest.raises(zlib.error):
    np.load(path)["descriptor"]
  with pytest.raises(ValueError, match="skills.npz is damaged"):
    skill_figures.skill_trajectories_figure(tmp_path)
  np.savez(tmp_path / "skills.npz", descriptor=np.zeros((1, 1, 1, 2)))
  with pytest.raises(ValueError, match="skills.npz is damaged"):
    skill_figures.skill_trajectories_figure(tmp_path)
