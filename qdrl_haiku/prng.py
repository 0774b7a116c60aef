"""Numbers that are folded into keys, for draws that belong to no member.

Members, offspring and instances draw from `fold_in(key, i)`, i counted from 0.
What else is drawn from the same key has one of these numbers, at the other end
of int32. No two of one kind of key are equal.
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

  # Where the same generation initialises it again.
  RESTART = 2**31 - 2
  # Of the states in which its episodes begin, and of its first ones' ages.
  POOL = 2**31 - 3
  AGES = 2**31 - 13
  # Of the first elite's key: all hyperparameters of a first repertoire.
  HYPERPARAMS = 2**31 - 10


class OfInstance:
  """Folded into the key of an environment's instance."""

  SKILL = 2**31 - 1
