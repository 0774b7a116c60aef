"""Skills, and critics that agents share, where observations are a dict."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import specs, training
from qdrl_haiku.programs import experiment
from tests import configs, toy


class Camera(toy.Walk):
  """Shows how many steps there were as a picture, and critics where it is."""

  observation_spec = {
    "picture": specs.Array((2, 2, 1), "uint8", 0, 255),
    "privileged_place": specs.Array((1,))}

  def _state(self, *args):
    state = super()._state(*args)
    x, steps = state.obs
    picture = jnp.full((2, 2, 1), steps).astype(jnp.uint8)
    return state.replace(obs={
      "picture": picture, "privileged_place": x[None]})


_FLAGS = (
  f"--env_name={__name__}:Camera --episode_length=6 --hidden_layer_sizes=4 "
  "--batch_size=8 --min_replay_size=16 --num_eval_episodes=4 --seed=0 ")


def _generation(program, flags):
  """The state after a generation of a program's setup, and its report."""
  config = configs.configured(program, _FLAGS + flags)
  setup = experiment.build(config)
  key = jax.random.key(0)
  return training.step(setup, training.init(setup, key), key)


@pytest.mark.parametrize("name", [
  "smerl", *(pytest.param(x, marks=pytest.mark.slow) for x in (
    "dads", "diayn", "metra"))])
def test_skills_are_learned(name):
  state, report = _generation("train_pbt", (
    f"--learner={name} --num_skills=2 --skill_type=discrete "
    "--population_size=2 --num_envs=4 --num_timesteps=64 "
    "--perturbation_interval=64"))
  assert report.finite.all()
  seen = state.members.replay.frames.ring.storage
  assert seen["picture"].dtype == jnp.uint8
  assert {x.shape[2:] for x in seen.values()} == {(2, 2, 1), (1,), (2,)}
  assert np.isfinite(report.metrics["intrinsic_reward"]).all()


@pytest.mark.parametrize("emitter", [
  "dcrl", pytest.param("pga", marks=pytest.mark.slow)])
def test_a_critic_is_shared(emitter):
  state, _ = _generation("train_me_pbt", (
    f"--learner=td3 --emitter={emitter} --variation_batch_size=8 "
    "--num_critic_steps=4 --num_policy_steps=2 --num_generations=1"))
  stored = state.emitter.teacher.replay.storage.observation
  assert stored["picture"].dtype == jnp.uint8
  assert np.isfinite(state.emitter.metrics["critic_loss"])
