"""Tests that bad settings and calls are refused with what a user needs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers
from qdrl_haiku.controllers import lineage
from tests.controllers import common

_NAN, _INF = math.nan, math.inf
_SPACE = {"x": controllers.Uniform(0.0, 1.0)}


class _RangeOfAUser:
  """A range without a scale, which all but `pb2` can use."""

  def sample(self, key):
    return jax.random.uniform(key)

  def perturb(self, value, up, factors):
    return value

  def same(self, first, second):
    return first == second


@pytest.mark.parametrize(
  "kind, settings, complaint",
  [
    ("PBT", {"exploit": "truncate"}, "'truncate' .* mean 'truncation'"),
    ("PBT", {"explore": "mix"}, "explore='mix' is unknown; .* 'mixed'"),
    ("PBT", {"quantile_fraction": 0.0}, "quantile_fraction must be above 0"),
    ("PBT", {"quantile_fraction": 0.6}, "must be at most 0.5"),
    ("PBT", {"quantile_fraction": _NAN}, "must be above 0, got nan"),
    ("PBT", {"num_parents": -1}, "num_parents must be at least 0"),
    ("PBT", {"num_replaced": 1.5}, "num_replaced is 1.5; give an integer"),
    ("PBT", {"num_replaced": True}, "num_replaced is True; give an integer"),
    ("PBT", {"num_parents": 0}, "num_parents=0 leaves num_replaced=None"),
    ("PBT", {"num_parents": 0, "num_replaced": 1}, "num_parents=0 leaves"),
    (
      "PBT",
      {"num_parents": 1, "num_replaced": 0},
      "num_parents=1 has no effect: num_replaced=0",
    ),
    ("PBT", {"exploit": "none", "num_replaced": 1}, "=1 has no effect"),
    (
      "PBT",
      {"exploit": "tournament", "num_parents": 1},
      "num_parents=1 has no effect: exploit is 'tournament'",
    ),
    ("PBT", {"resample_probability": 1.1}, "must be at most 1"),
    ("PBT", {"perturbation_factors": (1.25, 0.8)}, "perturbation_factors="),
    ("PBT", {"perturbation_factors": (0.0, 1.25)}, "perturbation_factors="),
    ("PBT", {"perturbation_factors": (0.8, _INF)}, "factors must be finite"),
    ("PBT", {"perturbation_factors": (0.8,)}, "perturbation_factors="),
    ("PB2", {"window": 0}, "window must be at least 1, got 0"),
    ("PB2", {"optimism": -1.0}, "optimism must be at least 0, got -1.0"),
    ("PB2", {"optimism": _NAN}, "optimism must be at least 0, got nan"),
    ("MFPBT", {"frequencies": ()}, "don't rise from 1"),
    ("MFPBT", {"frequencies": (1,)}, "two or more"),
    ("MFPBT", {"frequencies": (2, 4)}, r"\(2, 4\) don't rise from 1"),
    ("MFPBT", {"frequencies": (1, 4, 4)}, "don't rise from 1"),
    ("MFPBT", {"frequencies": (1, 2.5)}, "is 2.5; give an integer"),
    ("SuccessiveHalving", {"first_rung": 0}, "first_rung must be at least 1"),
    ("SuccessiveHalving", {"reduction_factor": 1}, "must be at least 2"),
    ("SuccessiveHalving", {"reduction_factor": 2.5}, "2.5; give an integer"),
  ],
)
def test_settings(kind, settings, complaint):
  with pytest.raises(ValueError, match=complaint):
    getattr(controllers, f"{kind}Config")(**settings)


@pytest.mark.parametrize(
  "make, complaint",
  [
    (lambda: controllers.Uniform(1.0, 1.0), "low=1.0 is not below"),
    (lambda: controllers.Uniform(_NAN, 1.0), "low=nan"),
    (lambda: controllers.Uniform("0", 1.0), "low='0'"),
    (lambda: controllers.Uniform(-1e31, 1.0), r"low=-1e\+31"),
    (lambda: controllers.Uniform(1.0, 1.0 + 1e-9), "no two float32"),
    (lambda: controllers.LogUniform(0.0, 1.0), "low=0.0 has no logarithm"),
    (lambda: controllers.LogUniform(-1.0, 1.0), "low=-1.0 has no logarithm"),
    (lambda: controllers.LogUniform(1e-40, 1.0), "low=1e-40"),
    (lambda: controllers.OneMinusLogUniform(-0.1, 0.9), "low=-0.1"),
    (lambda: controllers.OneMinusLogUniform(0.9, 1.0), "high=1.0"),
    (lambda: controllers.OneMinusLogUniform(0.9, 1 - 1e-9), "as float32"),
    (lambda: controllers.Fixed(_INF), "value=inf"),
    (lambda: controllers.Fixed(True), "value=True"),
    (lambda: controllers.Choice(()), "leaves no choice"),
    (lambda: controllers.Choice((1.0, 1.0 + 1e-9)), "a value twice"),
    (lambda: controllers.Choice((1.0, "2")), "value='2'"),
    (
      lambda: controllers.pb2(controllers.PB2Config(), {"x": _RangeOfAUser()}),
      "has no scale .* use Uniform",
    ),
    (
      lambda: controllers.explore(controllers.PBTConfig(), {"tau": 0.1}),
      r"\['tau'\]=0.1 is not a range.*Fixed",
    ),
    (
      lambda: lineage.named_leaves({"sac": {"tau": 1.0}, "sac/tau": 2.0}),
      "2 hyperparameters.*sac/tau; rename",
    ),
  ],
)
def test_ranges_and_spaces(make, complaint):
  with pytest.raises(ValueError, match=complaint):
    make()


@pytest.mark.parametrize(
  "text, complaint",
  [
    ("tau", "lacks a name or a kind"),
    (":uniform:0:1", "lacks a name or a kind"),
    ("tau:loguniform:1e-3:1e-1", "did you mean 'log_uniform'"),
    ("tau:zzzz:1:2", "unknown; give one of choice, fixed"),
    ("tau:choice:1", "leaves no choice"),
    ("tau:choice:1:2:1", "has a value twice"),
    ("tau:choice:1:b", "'1:b' where numbers belong"),
    ("tau:uniform:1", "has 1 numbers after 'uniform', not 2"),
    ("tau:fixed:1:2", "has 2 numbers after 'fixed', not 1"),
    ("tau:uniform:a:1", "'a:1' where numbers belong"),
    ("tau:uniform:2:1", "low=2.0 is not below high=1.0"),
    ("tau:uniform:0:inf", "high=inf is not a number that float32 holds"),
  ],
)
def test_text_of_a_range(text, complaint):
  with pytest.raises(ValueError) as error:
    controllers.search_space.parse(text)
  message = str(error.value)
  assert repr(text) in message and complaint in message
  assert "\n" not in message


@pytest.mark.parametrize(
  "controller, size, complaint",
  [
    (
      lambda: controllers.pbt(
        controllers.PBTConfig(num_parents=3, num_replaced=2), _SPACE
      ),
      4,
      "num_parents=3 and num_replaced=2 .* population_size=4",
    ),
    (
      lambda: controllers.pb2(controllers.PB2Config(window=32), _SPACE),
      64,
      "window=32 is less than population_size=64",
    ),
    *(
      (
        lambda: controllers.mf_pbt(
          controllers.MFPBTConfig(frequencies=(1, 2)), _SPACE
        ),
        size,
        f"population_size={size} can't be divided .* multiple of 8",
      )
      for size in (4, 9, 12)
    ),
  ],
)
def test_population_sizes(controller, size, complaint):
  with pytest.raises(ValueError, match=complaint):
    controller().init(jax.random.key(0), size)


@pytest.mark.parametrize(
  "fitness, hyperparams, complaint",
  [
    (np.zeros((2, 2)), {"x": np.zeros(2)}, r"fitness has shape \(2, 2\)"),
    (np.zeros(0), {"x": np.zeros(2)}, r"fitness has shape \(0,\)"),
    (np.zeros(2), {"tau": np.zeros(2)}, "differ from the search space"),
    (np.zeros(2), {"x": np.zeros(3)}, r"\['x'\] has shape \(3,\)"),
  ],
)
def test_updates(fitness, hyperparams, complaint):
  update = common.update(controllers.pbt(controllers.PBTConfig(), _SPACE))
  with pytest.raises(ValueError, match=complaint):
    update(jax.random.key(0), fitness, hyperparams)


@pytest.mark.parametrize(
  "extra, complaint",
  [
    ({"reasons": {"child": jnp.zeros(4)}}, "'child' has the name of a column"),
    ({"reasons": {"hope": jnp.zeros(3)}}, r"'hope' is float32\(3,\), not"),
    ({"metrics": {"hope": jnp.zeros(4)}}, r"'hope' is float32\(4,\); give one"),
    ({"parents": jnp.zeros(4)}, r"parents are float32\(4,\), not int32\(4,\)"),
    ({"hyperparams": {"x": jnp.zeros(3)}}, "hyperparameters.* differs from"),
  ],
)
def test_decisions_of_another_shape(extra, complaint):
  controller = controllers.random_search(_SPACE)

  def update(*args):
    state, decision = controller.update(*args)
    return state, decision._replace(**extra)

  with pytest.raises(ValueError, match=complaint):
    controllers.check(controller._replace(update=update), 4)


@pytest.mark.parametrize("leaf", [jnp.zeros(2), jnp.zeros(())])
def test_inherited_leaves_without_the_population_axis(leaf):
  with pytest.raises(ValueError, match=r"members\['x'\] has shape"):
    controllers.inherit({"x": leaf}, jnp.arange(3))


@pytest.mark.parametrize(
  "named, complaint",
  [
    ({"rate": 1.0}, "{'rate': 1.0} have other names than tau"),
    ({"tau": None}, "hyperparameter tau is None, which is no number"),
    ({"tau": "1"}, "hyperparameter tau is '1', which is no number"),
    (3, "hyperparameters 3 have other names"),
  ],
)
def test_hyperparameters_by_other_names(named, complaint):
  with pytest.raises(ValueError, match=complaint):
    lineage.stacked_hyperparams([named], {"tau": 0.5})
