"""Records of one generation."""

from typing import NamedTuple

from qdrl_haiku import actors, controllers, types
from qdrl_haiku.training.setup import Scores


class IlluminationReport(NamedTuple):
  """Holds the changes of the repertoire in a generation.

  Attributes:
    metrics: of the repertoire, [] by name, see `map_elites.metrics`.
    sampled_cells: int32 [P], see `map_elites.PBTEmitterState`; None without a
      gradient population.
    new_hyperparams: leaves [P], with which the members go on; None without.
    emitter_metrics: of the emitter, [] by name.
  """

  metrics: types.Metrics
  sampled_cells: types.Array | None = None
  new_hyperparams: types.Hyperparams | None = None
  emitter_metrics: types.Metrics = {}


class Best(NamedTuple):
  """The fittest of one evaluation.

  Attributes:
    member: int32 [], its index.
    fitness: [], by this evaluation alone; NaN if nobody is finite.
    episode_return: [].
    hyperparams: leaves [], with which it was trained.
    state: its learner state.
  """

  member: types.Array
  fitness: types.Array
  episode_return: types.Array
  hyperparams: types.Hyperparams
  state: types.State


class GenerationReport(NamedTuple):
  """Holds the results of a generation, from before the decision.

  Attributes:
    generation: int32 [], counted from 1.
    evaluation: returns and lengths [P, N], and descriptors if there are any.
    scores: what the evaluation says of each member, [P] by name, with
      `episode_return` among them.
    fitness: [P], what the controller saw; NaN for a non-finite member.
    hyperparams: leaves [P], with which the members were trained.
    metrics: by name, [P], means over the generation's updates; NaN if there
      was none.
    num_updates: int32 [P], critic steps of each member.
    finite: bool [P], whether all that a member learns from and acts with was,
      see `population.must_be_finite`, and its fitness.
    decision: the controller's, or None if there is no controller.
    best: the fittest by this evaluation alone.
    evaluation_steps: int32 [B, N], environment steps of each episode by which
      agents were evaluated, elites that are evaluated again among them. Their
      sum may be more than an int32 holds.
    illumination: what happened to the repertoire; None where there is none.
  """

  generation: types.Array
  evaluation: actors.Evaluation
  scores: Scores
  fitness: types.Array
  hyperparams: types.Hyperparams
  metrics: types.Metrics
  num_updates: types.Array
  finite: types.Array
  decision: controllers.Decision | None
  best: Best
  evaluation_steps: types.Array
  illumination: IlluminationReport | None = None


class Trained(NamedTuple):
  """Holds the results of training before members are evaluated.

  Attributes:
    metrics: by name, [S], means over the generation's updates; NaN if there
      was none.
    num_updates: int32 [S], critic steps of each member.
  """

  metrics: types.Metrics
  num_updates: types.Array
