"""What tests of controllers share."""

SURVIVE, RESAMPLE, PERTURB, MIXED, REINITIALISE, COPY = range(6)
"""The operators of `controllers.pbt`."""


def update(controller):
  """(key, fitness, hyperparameters) -> the decision, if nothing is known."""
  return lambda *args: controller.update((), *args)[1]
