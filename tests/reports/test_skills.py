"""Tests of what is shown of agents with skills."""

import jax
import numpy as np
import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import curves, skills
from qdrl_haiku.runs import skill_files
from qdrl_haiku.storage.directory import RunDirectory
from tests.training import skill_common


def _run(
  path, prior=skill_common.PRIOR, env=skill_common.WALK, seen="descriptor"
):
  """A run that evaluated the same skills twice."""
  _, evaluation, _ = skill_common.evaluated(
    prior, env, discriminator_input=seen
  )
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


def test_each_episode_goes_where_it_went_in_the_colour_of_its_skill(tmp_path):
  run, evaluation = _run(tmp_path / "run")
  found = skills.trajectories(skills.read_episodes(run.path))
  size, num = evaluation.returns.shape
  assert len(found["data"]) == size * num
  colors = {}
  for i, trace in enumerate(found["data"]):
    member, episode = divmod(i, num)
    length = evaluation.lengths[member, episode]
    states = evaluation.trajectory["descriptor"][member, episode, :length]
    np.testing.assert_allclose(trace["x"], states[:, 0], rtol=1e-5)
    np.testing.assert_allclose(trace["y"], states[:, 1], rtol=1e-5)
    skill = np.argmax(evaluation.trajectory["skill"][member, episode])
    assert trace["name"] == f"skill {skill}"
    colors.setdefault(skill, set()).add(trace["line"]["color"])
  assert all(len(of_one) == 1 for of_one in colors.values())
  assert len(set.union(*colors.values())) == skill_common.NUM_SKILLS
  layout = found["layout"]
  assert layout["xaxis2"]["title"]["text"] == "x"
  assert layout["yaxis2"]["title"]["text"] == "steps"
  assert layout["yaxis2"]["range"] == [-0.5, 99.5]


def test_directions_have_ways_but_no_curves(tmp_path):
  run, _ = _run(tmp_path / "run", skill_common.CIRCLE)
  episodes = skills.read_episodes(run.path)
  names = [trace["name"] for trace in skills.trajectories(episodes)["data"]]
  assert all(name.count(",") == 1 for name in names)
  assert skills.returns(run) is None


def test_each_skill_has_a_curve_of_each_member(tmp_path):
  run, _ = _run(tmp_path / "run")
  found = skills.returns(run)
  # Members, skills, and two kinds of return.
  assert len(found["data"]) == 2 * skill_common.NUM_SKILLS * 2
  expected = [
    row["diversity_return"]
    for row in run.skills
    if row["member"] == 0 and row["skill"] == [1, 0, 0]
  ]
  assert found["data"][0]["name"] == "skill 0"
  assert found["data"][0]["y"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("env", [skill_common.LINE, skill_common.BLIND])
def test_without_two_axes_there_are_no_ways(env, tmp_path):
  run, _ = _run(tmp_path / "run", env=env, seen="observation")
  assert skills.trajectories(skills.read_episodes(run.path)) is None


def test_all_of_it_is_on_the_page(tmp_path):
  run, _ = _run(tmp_path / "run")
  page = reports.render([run], {}, {})
  assert ">Skills</a>" in page
  assert page.count('class="plot"') == 3
  panels = curves.metric_panels(run, "diayn/")["layout"]["annotations"]
  assert [x["text"] for x in panels] == ["state coverage [cells of 100]"]


def test_a_damaged_file_is_named(tmp_path):
  (tmp_path / "skills.npz").write_bytes(b"nothing")
  with pytest.raises(ValueError, match=r"skills.npz is damaged .*; remove it"):
    skills.read_episodes(tmp_path)
  np.savez(tmp_path / "skills.npz", descriptor=np.zeros((1, 1, 1, 2)))
  with pytest.raises(ValueError, match="skills.npz is damaged"):
    skills.read_episodes(tmp_path)
