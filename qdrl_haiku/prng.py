"""Numbers that are folded into keys, for draws that belong to no member.

Members, offspring and instances draw from `fold_in(key, i)`, i counted from 0.
Other draws from the same key have one of these numbers, at the other end of
int32. No two of one kind of key are equal.
"""


class OfGeneration:
  """Folded into a generation's key."""

  CONTROLLER = 2**31 - 1
  VARIATION = 2**31 - 4
  SAMPLES = 2**31 - 5
  INHERIT = 2**31 - 6
  TRANSPLANT = 2**31 - 7
  ASK = 2**31 - 10
  EVALUATE = 2**31 - 11
  TELL = 2**31 - 12
  TRAIN = 2**31 - 13
  IMPROVE = 2**31 - 14
  PARENTS = 2**31 - 15
  TARGETS = 2**31 - 16
  REEVALUATE = 2**31 - 17
  RESAMPLE = 2**31 - 18


class OfMember:
  """Folded into a member's key, or an elite's."""

  # Initialises it again in the same generation.
  RESTART = 2**31 - 2
  # States in which its episodes begin, and the first ones' ages.
  POOL = 2**31 - 3
  AGES = 2**31 - 13
  # All hyperparameters of a first repertoire, by the first elite's key.
  HYPERPARAMS = 2**31 - 10


class OfInstance:
  """Folded into the key of an environment's instance."""

  SKILL = 2**31 - 1
