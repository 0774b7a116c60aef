"""Evaluates an agent that a run left behind; the run stays as it is.

python launchers/evaluate.py --logdir=logs/my_run --member=3
"""

import os

import launch
import learner_flags
import shared_flags
import skill_flags
from absl import flags

FLAGS = flags.FLAGS
_DEFAULT_EPISODES = 16
# Flags that mean something else here than when the run was started.
_OF_A_LOOK = (
  "compilation_cache_dir", "logdir", "num_eval_episodes", "resume", "seed"
)  # fmt: skip


def _define() -> None:
  shared_flags.define()
  flags.DEFINE_integer(
    "member",
    None,
    "Which agent of the latest checkpoint; by default the best agent that the "
    "run ever evaluated.",
  )
  flags.DEFINE_string(
    "export", None, "A new file, .npz, to which the policy is written."
  )
  flags.DEFINE_list(
    "skill",
    None,
    "Of DIAYN: an index, like 3, or numbers, like 0.6,0.8; by default all.",
  )


def main() -> None:
  """Evaluates the agent that the flags ask for."""
  if not FLAGS.logdir:
    raise ValueError("--logdir is missing: which run is to be evaluated?")
  learner_flags.refuse_given(
    ["resume", "suffix", "warm_start"], "a look at a run trains nothing"
  )
  if not 0 <= FLAGS.seed < 2**32:
    raise ValueError(
      f"--seed={FLAGS.seed} must be at least 0 and below 2**32."
    )
  launch.use_settings_of(FLAGS.logdir, besides=_OF_A_LOOK)
  launch.prepare_jax()
  import jax

  from qdrl_haiku import actors, export, training
  from qdrl_haiku.training import logs

  num_episodes = FLAGS.num_eval_episodes
  if num_episodes is not None and not 1 <= num_episodes < 2**31:
    raise ValueError(
      f"--num_eval_episodes={num_episodes} must be at least 1 and below 2**31; "
      "leave it out for the default."
    )
  if FLAGS.export and os.path.exists(FLAGS.export):
    raise ValueError(f"--export={FLAGS.export} is there; name a new file.")
  if FLAGS.skill is not None:
    FLAGS.num_eval_episodes = None  # It needn't show all skills.
  agent = shared_flags.make_agent()
  eval_env = agent.eval_env
  if FLAGS.skill is not None:
    eval_env = skill_flags.one_skill(eval_env)
  elif num_episodes is None:
    num_episodes = agent.num_eval_episodes
  if num_episodes is None:
    num_episodes = _DEFAULT_EPISODES
  if FLAGS.member is None:
    state, record = training.read_best(agent.learner, FLAGS.logdir)
    state = jax.tree.map(lambda x: x[None], state)
    which = f"best agent, of step {record['step']}"
  else:
    if logs.RunDirectory(FLAGS.logdir).settings().get("emitter") == "ga":
      raise ValueError(
        f"--member={FLAGS.member}, but no agents trained in a run with "
        "--emitter=ga; leave it out for the best elite."
      )
    state, record = training.read_agents(agent.learner, FLAGS.logdir)
    size = len(record["returns"])
    if not 0 <= FLAGS.member < size:
      raise ValueError(
        f"--member={FLAGS.member}, but there are {size} agents; give one from "
        f"0 to {size - 1}."
      )
    state = jax.tree.map(lambda x: x[FLAGS.member : FLAGS.member + 1], state)
    which = f"member {FLAGS.member} after generation {record['generation']}"
  evaluation = jax.jit(
    lambda state, key: actors.evaluate(
      eval_env, agent.learner, state, key, num_episodes
    )
  )(state, jax.random.key(FLAGS.seed))
  summary = training.summarize(jax.device_get(evaluation.returns)[0])
  if FLAGS.skill is not None:
    which += f", skill {','.join(FLAGS.skill)}"
  if FLAGS.export:
    try:
      export.save(
        FLAGS.export,
        agent.learner,
        jax.tree.map(lambda x: x[0], state),
        activation=FLAGS.activation,
        info={"env_name": FLAGS.env_name, "agent": which},
      )
    except OSError as error:
      raise ValueError(
        f"--export={FLAGS.export} can't be written ({error.strerror})."
      ) from error
  print(f"{FLAGS.logdir}: {which}")
  for name, value in summary.items():
    print(f"  {name:<12} {value:g}")
  print(logs.to_json({"agent": which, **summary}))


if __name__ == "__main__":
  _define()
  launch.run_main(main)
