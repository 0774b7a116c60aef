"""Evaluates an agent that a run left behind; nothing of the run changes.

python launchers/evaluate.py --logdir=logs/my_run --member=3 --render=gif
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import config as config_lib
from qdrl_haiku import environments, skills, types
from qdrl_haiku.environments import BatchedEnvironment, randomizing
from qdrl_haiku.learners import Learner, SkillAgentConfig
from qdrl_haiku.programs import artifacts, experiment
from qdrl_haiku.programs.artifacts import export, repertoires, sweep
from qdrl_haiku.programs.cli import devices, evaluate_config, launch
from qdrl_haiku.programs.cli.evaluate_config import EvaluateConfig
from qdrl_haiku.programs.cli.launch import Given
from qdrl_haiku.programs.runs.progress import progress_of_waiting
from qdrl_haiku.programs.storage import strict_json
from qdrl_haiku.types import Record


def _main(given: Given) -> None:
  config = evaluate_config.check_evaluate_config(given.fill(EvaluateConfig()))
  run = experiment.read_config(config.logdir)
  run = dataclasses.replace(run, environment=given.fill(run.environment))
  devices.prepare_jax_devices(given.fill(devices.ProcessConfig()))
  with progress_of_waiting(lambda: "compiling or evaluating"):
    _evaluate(config, run)


def _evaluate(config: EvaluateConfig, run: experiment.Config) -> None:
  """Evaluates an agent of a run, exports it and draws it."""
  from qdrl_haiku.programs.drawing import films  # With matplotlib.

  num_episodes = config.num_eval_episodes
  swept = None
  if config.sweep:
    with config.blamed("sweep"):
      swept = sweep.parse_sweep(config.sweep)
      env = run.environment
      others = [x for x in env.randomize if x.partition(":")[0] != swept[0]]
      env = dataclasses.replace(
        env, randomize=(*others, sweep.sweep_specification(*swept)))
      env.make()  # Which checks what is swept.
    run = dataclasses.replace(run, environment=env)
  there = _elsewhere(run) if config.where else None
  shows_all_skills = config.skill is None and config.goal is None
  if shows_all_skills and num_episodes is not None:
    changed = dataclasses.replace(run.training, num_eval_episodes=num_episodes)
    run = dataclasses.replace(run, training=changed)
  setup = experiment.make_experiment_agent(run)
  learner, eval_env = setup.learner, setup.eval_env
  if config.skill is not None:
    with config.blamed("skill"):
      eval_env = _one_skill(run, eval_env, config.skill)
  elif num_episodes is None and isinstance(run.learner, SkillAgentConfig):
    num_episodes = setup.config.num_eval_episodes
  if config.render:
    with config.blamed("render"):
      scene = environments.scene(eval_env)
      films.check_film_format(scene, config.render)
  state, which, facts = _read_agent(config, run, learner, eval_env)
  if config.skill is not None:
    which += f", skill {config.text('skill')}"
  key = jax.random.key(config.seed)
  num_episodes = num_episodes or evaluate_config.DEFAULT_EPISODES
  if config.goal is not None:
    with config.blamed("goal"):
      eval_env, distance = _towards_goal(
        config.goal, run, eval_env, learner, state, key, num_episodes)
    facts["goal_distance"] = distance
    which += f", towards {config.text('goal')}"
  if swept is not None:
    if note := getattr(environments.one_instance(eval_env), "note", None):
      print(note)
    returns = sweep.sweep_agent(
      eval_env, learner, state, key, *swept, num_episodes)
    _report_sweep(config, which, *swept, returns)
    return
  evaluation = artifacts.evaluate_agent(
    eval_env, learner, state, key, num_episodes)
  numbers = artifacts.summarize_evaluation(evaluation, eval_env.descriptor)
  summary = facts | numbers
  if there is not None:
    other = artifacts.evaluate_agent(there, learner, state, key, num_episodes)
    summary |= artifacts.mean_intervals(evaluation) | {
      f"gymnasium/{x}": y for x, y in artifacts.mean_intervals(other).items()}
  if config.export:
    with config.blamed("export"):
      _export(config, run, learner, eval_env, state, which)
  if config.render:
    episode = films.first_film_episode(eval_env, learner, state, key, scene)
    title = f"{run.environment.env_name}: {which}"
    path = str(config.render_to)
    with config.blamed("render_to"):
      films.render_film(path, config.render, scene, episode, title)
  print(f"{config.logdir}: {which}")
  width = max(map(len, summary))
  for name, value in summary.items():
    print(f"  {name:<{width}} {value:g}")
  for path in filter(None, (config.export, config.render_to)):
    print(f"wrote {path}")
  print(strict_json.to_strict_json({"agent": which, **summary}))


def _elsewhere(run: experiment.Config) -> BatchedEnvironment:
  """Returns Gymnasium's own environment of a run's task."""
  if isinstance(run.learner, SkillAgentConfig):
    raise ValueError(
      "--in=gymnasium evaluates agents without skills; leave it out.")
  try:
    return run.environment.in_gymnasium().make()
  except ValueError as error:
    raise ValueError(f"--in=gymnasium: {error}") from error


def _export(
  config: EvaluateConfig, run: experiment.Config, learner: Learner,
  env: BatchedEnvironment, state: types.State, which: str,
) -> None:
  """Writes the policy, or all of a repertoire's."""
  path, about = str(config.export), run.environment
  info: Record = {
    "env_name": about.env_name, "agent": which,
    "episode_length": env.episode_length,
    **({"hide": about.hide} if about.hide else {}),
    **({"randomize": about.randomize} if about.randomize else {}),
    **environments.policy_interface(env)}
  if path.endswith("/"):
    found, step = repertoires.read_latest_repertoire(learner, config.logdir)
    export.export_repertoire(
      path, learner, found, info={**info, "agent": f"elites of step {step}"})
  elif path.endswith(".onnx"):
    export.export_onnx(
      path, learner, state, env.observation_spec, opset=config.opset, info=info)
  else:
    export.export_policy(path, learner, state, info=info)
  for warning in info.get("warnings", ()):
    print(f"warning: {warning}", file=sys.stderr)


def _report_sweep(
  config: EvaluateConfig, which: str, name: str, values: tuple[float, ...],
  returns: np.ndarray,
) -> None:
  """Prints and draws the returns [K, N] of a sweep."""
  from qdrl_haiku.programs.drawing import figure
  from qdrl_haiku.programs.drawing.with_matplotlib import draw_with_matplotlib

  path = str(config.render_to)
  title = name + ", as a factor" * randomizing.is_factor(name)
  means = returns.mean(axis=1).tolist()
  # Half of the episodes are between these.
  low, high = np.quantile(returns, [0.25, 0.75], axis=1)
  curve = figure.Series("", (), values, means, low, high)
  described = figure.plot_figure(
    figure.comparison_curve(curve, 0), title, figure.RETURN)
  picture = draw_with_matplotlib(described)
  with config.blamed("render_to"):
    picture.savefig(path)
  print(f"{config.logdir}: {which}")
  for value, mean in zip(values, means, strict=True):
    print(f"  {name}={value:<10g} {mean:g}")
  print(f"wrote {path}")
  record = {"agent": which, "sweep": name, "values": values, "mean": means}
  print(strict_json.to_strict_json(record))


def _require_skills(
  run: experiment.Config, env: BatchedEnvironment
) -> tuple[SkillAgentConfig, environments.SkillEnvironment]:
  """Returns the agents and the environment of a run with skills."""
  if not isinstance(run.learner, SkillAgentConfig):
    name = config_lib.config_tree_values(run)["learner"]
    raise ValueError(f"the run's learner, {name}, has no skills; leave it out.")
  assert isinstance(env, environments.SkillEnvironment)
  return run.learner, env


def _one_skill(
  run: experiment.Config, env: BatchedEnvironment, given: tuple[str, ...]
) -> BatchedEnvironment:
  """Returns an environment all of whose episodes have one skill."""
  learner, env = _require_skills(run, env)
  prior = learner.skills.prior()
  try:
    numbers = [float(x) for x in given]
    is_index = prior.num_skills is not None and len(numbers) == 1
    skill = int(given[0]) if is_index else numbers
  except ValueError:
    raise ValueError(
      "it is neither an index nor numbers; give it like 3 or 0.6,0.8."
    ) from None
  return environments.SkillEnvironment(
    env.env, skills.constant_skill(prior, skill), "episode")


def _towards_goal(
  goal: tuple[float, ...], run: experiment.Config, eval_env: BatchedEnvironment,
  learner: Learner, state: types.State, key: types.Key, num_episodes: int,
) -> tuple[BatchedEnvironment, float]:
  """Returns the environment in which skills lead to a goal, and how near."""
  skill_agent, eval_env = _require_skills(run, eval_env)
  env = eval_env.env
  objective = experiment.make_skill_objective(skill_agent, env)
  place = jnp.array(goal, jnp.float32)
  goals = jnp.broadcast_to(place, (num_episodes, len(goal)))
  distance = artifacts.reach_goals(env, learner, objective, state, key, goals)
  chosen = artifacts.goal_environment(env, objective, state, place)
  return chosen, float(jnp.mean(distance))


def _read_agent(
  config: EvaluateConfig, run: experiment.Config, learner: Learner,
  env: BatchedEnvironment,
) -> tuple[types.State, str, dict[str, float]]:
  """Reads the chosen agent: its state, which it is, what else is known."""
  if config.choices == ["best"]:
    state, record = artifacts.read_best(learner, config.logdir)
    return state, f"best agent, of step {record['step']}", {}
  if config.member is None:
    found = repertoires.read_latest_repertoire(learner, config.logdir)
    return _read_elite(config, learner, *found)
  member, repertoire = config.member, run.repertoire
  if repertoire is not None and not repertoire.has_members:
    raise ValueError(
      f"--member={member}, but no agents trained in a run with --emitter="
      f"{repertoire.emitter}; leave it out for the best elite, or give --cell.")
  states, record = artifacts.read_agents(learner, config.logdir)
  size = len(record["returns"])
  if member >= size:
    raise ValueError(
      f"--member={member}, but there are {size} agents; give one from 0 to "
      f"{size - 1}.")
  which = f"member {member} after generation {record['generation']}"
  return jax.tree.map(lambda x: x[member], states), which, {}


def _read_elite(
  config: EvaluateConfig, learner: Learner, repertoire: types.Tree, step: int
) -> tuple[types.State, str, dict[str, float]]:
  """Reads an elite, as `_read_agent` does."""
  chosen = config.cell
  with config.blamed(*config.choices):
    if chosen is not None:
      repertoires.check_repertoire_cell(repertoire, chosen)
    elif config.descriptor is not None:
      chosen = repertoires.nearest_occupied_cell(repertoire, config.descriptor)
  if config.weights is not None:
    with config.blamed("weights"):
      chosen = repertoires.elite_by_weights(repertoire, config.weights, chosen)
  assert chosen is not None
  cell = chosen
  genotype = jax.tree.map(lambda x: x[cell], repertoire.genotypes.genotype)
  where = ",".join(f"{x:.3g}" for x in repertoire.descriptors[cell])
  return (
    learner.from_genotype(genotype),
    f"cell {cell} of the repertoire of step {step}, found at {where}",
    {"cell": cell, "cell_return": float(repertoire.fitness[cell])})


def evaluate_from_flags() -> None:
  """Starts this launcher with the arguments of the command line."""
  own = config_lib.config_tree_flags(EvaluateConfig())
  own |= config_lib.config_tree_flags(devices.ProcessConfig())
  launch.launch_main(_main, own, __doc__)
