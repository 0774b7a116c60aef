"""PGA-MAP-Elites: parents that follow the gradient of one critic.

Nilsson and Cully (2021), "Policy gradient assisted MAP-Elites", GECCO.
"""

from qdrl_haiku.map_elites.emitters import Emitter
from qdrl_haiku.map_elites.teaching import Teacher, taught_emitter
from qdrl_haiku.map_elites.variation import VariationFn


def pga_emitter(
  teacher: Teacher,
  variation_fn: VariationFn,
  *,
  gradient_batch_size: int,
  injection_batch_size: int,
  variation_batch_size: int,
) -> Emitter:
  """Improves some parents by a critic, injects its policy, varies the rest.

  Args:
    teacher: whose critic sees no targets, see `Teacher`.
    variation_fn: makes offspring, see `VariationFn`.
    gradient_batch_size: G, parents that are improved, >= 0.
    injection_batch_size: 1 if the critic's own policy, the greedy one, is an
      individual in each generation, else 0.
    variation_batch_size: V, variations, >= 0.

  Returns:
    The emitter, see `taught_emitter`.

  Raises:
    ValueError: if a batch size is not a count, or more than one policy is to
      be injected.
  """
  if injection_batch_size not in (0, 1):
    raise ValueError(
      f"injection_batch_size={injection_batch_size} would inject one policy "
      "more than once, since the critic has no other; give 0 or 1."
    )
  return taught_emitter(
    teacher,
    variation_fn,
    gradient_batch_size=gradient_batch_size,
    injection_batch_size=injection_batch_size,
    variation_batch_size=variation_batch_size,
  )
