"""Tests of evaluating agents with skills, and of what is written about it."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from qdrl_haiku import environments, learners, skills
from qdrl_haiku.training import logs, skill_plots
from qdrl_haiku.training import skills as training_skills
from tests import toy

_K, _P, _N, _T, _LIMIT = 3, 2, 5, 30, 4.0
_PRIOR, _CIRCLE = skills.categorical(_K), skills.sphere(2)
# Per member and skill: how far a step goes. Some episodes end before the
# others, and from then on all would be other than it was.
_PUSHES = np.array([[0.9, -0.5, 0.2], [0.3, 0.1, 0.6]])
# No number of steps lies on the border of two cells.
_BOUNDS = environments.Descriptor(("x", "steps"), (-10.0, -0.5), (10.0, 99.5))
_WALK = environments.Environment(
  toy.Walk(_LIMIT), episode_length=_T, descriptor=_BOUNDS
)


class _Blind(toy.Walk):
  """The same without descriptors."""

  descriptor = None

  def _state(self, *args):
    return super()._state(*args).replace(info={})


class _Line(toy.Walk):
  """The same with a descriptor of one axis."""

  descriptor = environments.Descriptor(("x",), (-10.0,), (10.0,))

  def _state(self, *args):
    state = super()._state(*args)
    return state.replace(info={"state_descriptor": state.obs[:1]})


def _learner(prior, descriptor_size, config):
  """Pushes by the agent's numbers times the skill."""
  base = toy.linear_learner()._replace(
    init=lambda key: jnp.zeros(prior.size),
    act_greedy=lambda state, observation: jnp.sum(
      state * observation[..., 2:], axis=-1, keepdims=True
    ),
  )
  return learners.diayn(base, 2, prior, descriptor_size, config)


@functools.cache
def _evaluated(
  prior=_PRIOR, env=_WALK, pushes=None, weights=None, **config
):
  """Agents with hand-set discriminators, as `evaluate` takes and sees them.

  Returns:
    The states, the evaluation and the scores.
  """
  descriptor_size = env.descriptor and env.descriptor.size
  config = learners.DIAYNConfig(
    discriminator_hidden_layer_sizes=(), **config
  )
  learner = _learner(prior, descriptor_size, config)
  states = jax.jit(jax.vmap(learner.init))(_keys())
  sines = np.arcsin(_PUSHES[:, : prior.size])
  states = states._replace(
    agent=jnp.asarray(sines, jnp.float32),
    discriminator_params=_params(states.discriminator_params),
  )
  if config.normalize_observations:
    mean, variance = np.array([[0.5, 9.0], [-1.0, 4.0]]), np.full((2, 2), 4.0)
    states = states._replace(
      observation_statistics=learners.ObservationStatistics(
        jnp.full(2, 10.0), *map(jnp.float32, (mean, variance))
      )
    )
  judge = learners.discriminator(2, prior, descriptor_size, config)
  evaluate = training_skills.skill_evaluation(
    environments.SkillEnvironment(env, prior, "fixed"), learner, judge, _N
  )
  evaluation, scores = jax.jit(evaluate)(states, _keys())
  return jax.device_get((states, evaluation, scores))


def _keys():
  return jax.random.split(jax.random.key(5), _P)


def _params(like):
  """Weights that make out of x and steps what isn't all right or all wrong."""
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype), like
  )


def _paths(prior=_PRIOR):
  """Of each member and episode: the skill and x and steps [length, 2]."""
  for member in range(_P):
    state = _reset(jax.random.split(_keys()[member], _N))
    drawn = np.eye(_K)[np.arange(_N) % _K]
    if prior.num_skills is None:
      env = environments.SkillEnvironment(_WALK, prior, "fixed")
      drawn = env.reset(jax.random.split(_keys()[member], _N)).info["skill"]
    for episode in range(_N):
      skill = np.asarray(drawn[episode], np.float64)
      x, path = float(state.obs[episode, 0]), []
      push = np.sin(skill @ np.arcsin(_PUSHES[member, : prior.size]))
      while len(path) < _T and x <= _LIMIT:
        x += push
        path.append((x, len(path) + 1.0))
      yield member, episode, skill, np.array(path)


_reset = jax.jit(_WALK.reset)


def _affine(states, member, inputs):
  """What the hand-set discriminator of a member puts out, in float64."""
  layer = states.discriminator_params["discriminator/output"]
  w, b = (np.asarray(layer[x][member], np.float64) for x in "wb")
  return inputs @ w + b


def _log_q(prior, parameters, skill):
  if prior.num_skills is not None:
    return special.log_softmax(parameters, axis=-1) @ skill
  angle = np.arctan2(*skill[::-1]) - np.arctan2(*parameters.T[::-1])
  return stats.vonmises.logpdf(angle, np.linalg.norm(parameters, axis=-1))


def _log_prior(prior):
  return -np.log(_K if prior.num_skills else 2 * np.pi)


def _per_member(values):
  """(member, value or values) pairs -> one array of values per member."""
  found = [[] for _ in range(_P)]
  for member, value in values:
    found[member].extend(np.ravel(value))
  return [np.array(x) for x in found]


def _later(values):
  """Those of the later half of an episode's steps."""
  return values[len(values) // 2 :]


_SETTINGS = pytest.mark.parametrize(
  ("prior", "config"),
  [
    (_PRIOR, ()),
    (_CIRCLE, ()),
    (_PRIOR, (("discriminator_input", "observation"),)),
    (
      _PRIOR,
      (
        ("discriminator_input", "observation"),
        ("normalize_observations", True),
      ),
    ),
  ],
  ids=["descriptor", "circle", "observation", "normalised"],
)


def _rewards(prior, states):
  """log q - log p of each step of each episode."""
  for member, episode, skill, path in _paths(prior):
    inputs = path
    if states.observation_statistics is not None:
      _, mean, variance = states.observation_statistics
      inputs = (path - mean[member]) / np.sqrt(variance[member])
      inputs = np.clip(inputs, -10, 10)
    log_q = _log_q(prior, _affine(states, member, inputs), skill)
    yield member, episode, log_q - _log_prior(prior)


@_SETTINGS
def test_diversity_is_the_sum_over_the_steps_of_an_episode(prior, config):
  states, evaluation, scores = _evaluated(prior, **dict(config))
  expected = np.zeros((_P, _N))
  for member, episode, rewards in _rewards(prior, states):
    expected[member, episode] = rewards.sum()
  np.testing.assert_allclose(
    evaluation.trajectory["diversity_return"], expected, rtol=1e-4, atol=1e-4
  )
  np.testing.assert_allclose(
    scores["diayn/diversity_return"],
    expected.mean(axis=1),
    rtol=1e-4,
    atol=1e-4,
  )


@_SETTINGS
def test_the_bound_is_the_mean_over_the_later_halves(prior, config):
  states, _, scores = _evaluated(prior, **dict(config))
  later = _per_member(
    (member, _later(rewards)) for member, _, rewards in _rewards(prior, states)
  )
  np.testing.assert_allclose(
    scores["diayn/mutual_information_lower_bound"],
    [x.mean() for x in later],
    rtol=1e-4,
    atol=1e-4,
  )


def test_without_the_log_prior_only_the_diversity_changes():
  _, evaluation, scores = _evaluated()
  _, other_evaluation, other = _evaluated(subtract_log_prior=False)
  np.testing.assert_allclose(
    other_evaluation.trajectory["diversity_return"],
    evaluation.trajectory["diversity_return"]
    - np.log(_K) * evaluation.lengths,
    rtol=1e-4,
    atol=1e-3,
  )
  for name in scores.keys() - {"diayn/diversity_return"}:
    np.testing.assert_array_equal(other[name], scores[name], err_msg=name)


def test_accuracies_are_shares_of_steps():
  states, _, scores = _evaluated()
  told = [
    (member, _affine(states, member, path).argmax(axis=1) == skill.argmax())
    for member, _, skill, path in _paths()
  ]
  for name, shares in (
    ("", [(member, _later(x)) for member, x in told]),
    ("_whole_episode", told),
  ):
    expected = [np.mean(x) for x in _per_member(shares)]
    assert all(0 < x < 1 for x in expected)
    np.testing.assert_allclose(
      scores[f"diayn/discriminator_accuracy{name}"], expected, rtol=1e-6
    )
  assert not np.allclose(
    scores["diayn/discriminator_accuracy"],
    scores["diayn/discriminator_accuracy_whole_episode"],
  )


def test_chance_is_one_in_as_many_as_there_are():
  scores = _evaluated()[-1]
  np.testing.assert_allclose(scores["diayn/chance_accuracy"], [1 / _K] * _P)


def test_coverage_counts_the_cells_that_episodes_visit():
  scores = _evaluated()[-1]
  visited = [set(), set()]
  for member, _, _, path in _paths():
    for x, steps in path:
      cell = np.floor([(x + 10) / 2, (steps + 0.5) / 10]).clip(0, 9)
      visited[member].add(tuple(cell))
  assert min(map(len, visited)) > 5
  assert scores["diayn/state_coverage"].tolist() == list(map(len, visited))


def test_coverage_of_one_axis_has_ten_cells():
  _, _, scores = _evaluated(env=_LINE)
  visited = [set(), set()]
  for member, _, _, path in _paths():
    visited[member] |= set(np.floor((path[:, 0] + 10) / 2).clip(0, 9))
  assert scores["diayn/state_coverage"].tolist() == list(map(len, visited))


_LINE = environments.Environment(_Line(_LIMIT), episode_length=_T)
_BLIND = environments.Environment(_Blind(_LIMIT), episode_length=_T)


def test_without_descriptors_there_is_no_coverage():
  _, evaluation, scores = _evaluated(
    env=_BLIND, discriminator_input="observation"
  )
  assert "diayn/state_coverage" not in scores
  assert evaluation.trajectory.keys() == {"skill", "diversity_return"}


def test_continuous_skills_have_no_accuracy():
  assert _evaluated(_CIRCLE)[-1].keys() == {
    "diayn/diversity_return",
    "diayn/mutual_information_lower_bound",
    "diayn/state_coverage",
  }


@pytest.mark.parametrize("prior", [_PRIOR, _CIRCLE], ids=["discrete", "circle"])
def test_the_trajectory_has_skills_and_descriptors(prior):
  _, evaluation, _ = _evaluated(prior)
  trajectory = evaluation.trajectory
  assert trajectory["skill"].shape == (_P, _N, prior.size)
  assert trajectory["descriptor"].shape == (_P, _N, _T, 2)
  for member, episode, skill, path in _paths(prior):
    length = len(path)
    assert evaluation.lengths[member, episode] == length
    np.testing.assert_allclose(
      trajectory["skill"][member, episode], skill, rtol=1e-6
    )
    np.testing.assert_allclose(
      trajectory["descriptor"][member, episode, :length],
      path,
      rtol=1e-4,
      atol=1e-4,
    )
    np.testing.assert_allclose(
      evaluation.returns[member, episode],
      path[:, 0].sum(),
      rtol=1e-4,
      atol=1e-4,
    )
  assert evaluation.lengths.min() < _T // 2 < evaluation.lengths.max()


# What is written and drawn.


def _written(path, prior=_PRIOR, env=_WALK, **config):
  """A run's directory after two generations of the same evaluation."""
  _, evaluation, _ = _evaluated(prior, env, **config)
  directory = logs.RunDirectory(path)
  for generation in (1, 2):
    training_skills.write(
      directory, generation, 100 * generation, evaluation, env.descriptor
    )
  return directory, evaluation


def test_a_row_per_member_and_skill_has_means_over_its_episodes(tmp_path):
  directory, evaluation = _written(tmp_path)
  rows = directory.rows("skills.jsonl")
  assert len(rows) == 2 * _P * _K
  assert {(r["generation"], r["step"]) for r in rows} == {(1, 100), (2, 200)}
  for row in rows:
    # Five episodes, three skills: dealt out one after the other.
    episodes = slice(int(np.argmax(row["skill"])), None, _K)
    assert sorted(row["skill"]) == [0.0, 0.0, 1.0]
    for name, values in (
      ("return", evaluation.returns),
      ("diversity_return", evaluation.trajectory["diversity_return"]),
    ):
      assert row[name] == pytest.approx(
        values[row["member"], episodes].mean(), rel=1e-6
      )
  assert {(r["member"], *r["skill"]) for r in rows} == {
    (member, *skill) for member in range(_P) for skill in np.eye(_K)
  }


def test_continuous_skills_have_a_row_per_episode(tmp_path):
  directory, evaluation = _written(tmp_path, _CIRCLE)
  rows = directory.rows("skills.jsonl")[: _P * _N]
  for row in rows:
    skills_of_member = evaluation.trajectory["skill"][row["member"]]
    (episode,) = np.flatnonzero(
      np.all(skills_of_member == np.float32(row["skill"]), axis=1)
    )
    assert row["return"] == pytest.approx(
      float(evaluation.returns[row["member"], episode])
    )
  assert len({tuple(row["skill"]) for row in rows}) == _P * _N


def test_the_arrays_are_those_of_the_evaluation(tmp_path):
  directory, evaluation = _written(tmp_path)
  arrays = dict(np.load(directory.path / "skills.npz"))
  expected = evaluation.trajectory | {
    "returns": evaluation.returns, "lengths": evaluation.lengths,
    "names": ["x", "steps"], "lower": [-10.0, -0.5], "upper": [10.0, 99.5],
  }  # fmt: skip
  assert arrays.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(arrays[name], value, err_msg=name)
  assert sorted(x.name for x in tmp_path.iterdir()) == [
    "skills.jsonl", "skills.npz"
  ]  # fmt: skip


def test_a_diverged_members_rows_are_strict_json(tmp_path):
  _, evaluation, _ = _evaluated()
  returns = evaluation.returns.copy()
  returns[1] = np.nan
  training_skills.write(
    logs.RunDirectory(tmp_path), 1, 100, evaluation._replace(returns=returns),
    None,
  )  # fmt: skip
  lines = (tmp_path / "skills.jsonl").read_text().splitlines()
  rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
  assert [row["return"] is None for row in rows] == [False] * 3 + [True] * 3
  assert "names" not in np.load(tmp_path / "skills.npz")


def _lines(axes):
  """Lines by what they show: paths and the points at which they end."""
  paths = [x for x in axes.lines if x.get_marker() == "None"]
  ends = [x for x in axes.lines if x.get_marker() != "None"]
  return paths, ends


def test_each_member_has_a_plot_with_its_episodes_until_they_end(tmp_path):
  directory, evaluation = _written(tmp_path)
  figure = skill_plots.trajectories(directory.path / "skills.npz")
  plots = [axes for axes in figure.axes if axes.axison]
  assert len(plots) == _P
  for member, axes in enumerate(plots):
    assert axes.get_title() == f"member {member}"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "steps")
    assert axes.get_xlim() == (-10.0, 10.0)
    assert axes.get_ylim() == (-0.5, 99.5)
    paths, ends = _lines(axes)
    assert len(paths) == len(ends) == _N
    for episode, (path, end) in enumerate(zip(paths, ends, strict=True)):
      length = evaluation.lengths[member, episode]
      states = evaluation.trajectory["descriptor"][member, episode, :length]
      np.testing.assert_array_equal(path.get_xydata(), states)
      np.testing.assert_array_equal(end.get_xydata(), states[-1:])
      assert path.get_color() == end.get_color()
    # Episodes i and i + 3 have the same of three skills.
    colors = [path.get_color() for path in paths]
    assert colors[:2] == colors[_K:]
    assert len(set(colors)) == _K


def test_directions_are_coloured_by_their_angle(tmp_path):
  directory, evaluation = _written(tmp_path, _CIRCLE)
  figure = skill_plots.trajectories(directory.path / "skills.npz")
  found = {}
  for member, axes in enumerate(x for x in figure.axes if x.axison):
    for skill, path in zip(
      evaluation.trajectory["skill"][member], _lines(axes)[0], strict=True
    ):
      found[float(np.arctan2(skill[1], skill[0]) % (2 * np.pi))] = (
        path.get_color()
      )
  assert len(set(found.values())) == _P * _N
  assert skill_plots._color(np.array([0.6, 0.8])) == skill_plots._color(
    np.array([1.2, 1.6])
  )


@pytest.mark.parametrize(
  "skill", [[0.7], [-3.0], [1.0], [0.2, -0.1], [0.0, 0.6, 0.8], [0.0, 0.0]]
)
def test_every_skill_has_a_colour(skill):
  color = skill_plots._color(np.array(skill))
  assert len(color) == 4
  assert all(0 <= x <= 1 for x in color)


def test_one_member_needs_no_name(tmp_path):
  directory, evaluation = _written(tmp_path)
  one = jax.tree.map(lambda x: x[:1], evaluation)
  training_skills.write(directory, 3, 300, one, _WALK.descriptor)
  figure = skill_plots.trajectories(directory.path / "skills.npz")
  assert [x.get_title() for x in figure.axes] == ["one colour per skill"]


@pytest.mark.parametrize("env", [_BLIND, _LINE], ids=["no axis", "one axis"])
def test_there_is_no_picture_without_two_axes(env, tmp_path):
  directory, _ = _written(
    tmp_path, env=env, discriminator_input="observation"
  )
  assert skill_plots.trajectories(directory.path / "skills.npz") is None


def test_there_is_no_picture_without_arrays(tmp_path):
  assert skill_plots.trajectories(tmp_path / "skills.npz") is None
