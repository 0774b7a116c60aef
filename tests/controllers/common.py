"""What tests of controllers that remember nothing share."""

SURVIVE, RESAMPLE, PERTURB, MIXED, REINITIALISE, COPY = range(6)
"""The operators of `controllers.pbt`."""


def init(controller, key, population_size):
  """The hyperparameters with which a population begins."""
  state, hyperparams = controller.init(key, population_size)
  assert state == ()
  return hyperparams


def update(controller):
  """(key, fitness, hyperparameters) -> the decision."""

  def decide(key, fitness, hyperparams):
    state, decision = controller.update((), key, fitness, hyperparams)
    assert state == ()
    return decision

  return decide
