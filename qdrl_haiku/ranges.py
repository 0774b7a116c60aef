"""The ranges that a number is drawn from and perturbed within.

Ranges are not pytree nodes: they are the leaves of a search space.
"""

import abc
import dataclasses
import math
import numbers
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import checks, names
from qdrl_haiku.types import Array, Key, Tree

_EXAMPLE = "policy_learning_rate:log_uniform:1e-5:1e-2"
# A step of `Uniform`, as a share of its range.
_UNIFORM_STEP = 0.2
_Factors = tuple[float, float]


def _check_number(owner: object, name: str, value: object) -> None:
  """Refuses values that are no numbers, or that float32 can't hold."""
  if (
    isinstance(value, bool)
    or not isinstance(value, numbers.Real)
    or not checks.fits_float32(float(value))
  ):
    raise ValueError(
      f"{owner}: {name}={value!r} is not a Python number that float32 holds"
      f" well; use 0 or a magnitude between {checks.SMALLEST_FLOAT} and"
      f" {checks.LARGEST_FLOAT}.")


@dataclasses.dataclass(frozen=True)
class Interval(abc.ABC):
  """A range with two bounds of the value, uniform on its subclass's scale."""

  low: float
  high: float

  def __post_init__(self) -> None:
    _check_number(self, "low", self.low)
    _check_number(self, "high", self.high)
    if not self.low < self.high:
      raise ValueError(
        f"{self}: low={self.low} is not below high={self.high}; give the"
        " smaller bound first, or use Fixed for a single value.")

  @abc.abstractmethod
  def _to_scale(self, value: Tree, library: ModuleType = jnp) -> Tree:
    """Maps values to the scale, or one number with `math`."""

  @abc.abstractmethod
  def _from_scale(self, position: Array) -> Array:
    """Maps positions on the scale to values."""

  def _ends(self) -> tuple[float, float]:
    """Returns the lower and the upper end on the scale, in float64."""
    ends = [float(self._to_scale(x, math)) for x in (self.low, self.high)]
    return min(ends), max(ends)

  def _steps(self, factors: _Factors) -> _Factors:
    """Returns the steps (down, up) on the scale, here a logarithmic one."""
    return math.log(factors[0]), math.log(factors[1])

  def _bounds(self) -> tuple[np.float32, np.float32]:
    """Returns the bounds in float32, rounded into the range."""
    low, high = np.float32(self.low), np.float32(self.high)
    if float(low) < self.low:
      low = np.nextafter(low, np.float32(np.inf))
    if float(high) > self.high:
      high = np.nextafter(high, np.float32(-np.inf))
    return low, high

  def _clip(self, value: Array) -> Array:
    return jnp.clip(jnp.asarray(value, jnp.float32), *self._bounds())

  def to_unit(self, value: Array) -> Array:
    """Maps values to positions on the scale, whose ends are 0 and 1."""
    start, end = self._ends()
    position = self._to_scale(self._clip(value)) - np.float32(start)
    return jnp.clip(position / np.float32(end - start), 0.0, 1.0)

  def from_unit(self, position: Array) -> Array:
    """Maps positions to values, the inverse of `to_unit`."""
    start, end = self._ends()
    return self._clip(self._from_scale(start + (end - start) * position))

  def sample(self, key: Key) -> Array:
    """Draws a value, float32 [], inside the range."""
    return self.from_unit(jax.random.uniform(key, (), jnp.float32))

  def perturb(self, value: Array, up: Array, factors: _Factors) -> Array:
    """Moves values [...] one step on the scale, reflected at the bounds.

    Args:
      value: [...].
      up: bool [...], the direction.
      factors: (down, up) with down < 1 < up, for scales that multiply.
    """
    start, end = self._ends()
    step_down, step_up = self._steps(factors)
    offset = self._to_scale(self._clip(value)) - start
    offset += jnp.where(up, np.float32(step_up), np.float32(step_down))
    # Reflected into [0, width], however far outside it is.
    width = end - start
    offset = jnp.mod(jnp.abs(offset), 2.0 * width)
    offset = jnp.minimum(offset, 2.0 * width - offset)
    return self._clip(self._from_scale(start + offset))

  def same(self, first: Array, second: Array) -> Array:
    """Returns whether values [...] are equal but for rounding, bool [...]."""
    # Steps that were reflected onto each other differ by the rounding of the
    # scale (16 units in its last place are allowed) and of the value (4).
    magnitude = max(abs(end) for end in self._ends())
    distance = jnp.abs(self._to_scale(first) - self._to_scale(second))
    return (distance <= 2.0**-19 * magnitude) | (
      jnp.abs(first - second) <= 2.0**-21 * jnp.abs(first))


@dataclasses.dataclass(frozen=True)
class Uniform(Interval):
  """Uniform; a perturbation moves by a fifth of the range."""

  def _to_scale(self, value: Tree, library: ModuleType = jnp) -> Tree:
    return value

  def _from_scale(self, position: Array) -> Array:
    return position

  def _steps(self, factors: _Factors) -> _Factors:
    step = _UNIFORM_STEP * (self.high - self.low)
    return -step, step


@dataclasses.dataclass(frozen=True)
class LogUniform(Interval):
  """Log-uniform between bounds above 0; a perturbation multiplies."""

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.low <= 0:
      raise ValueError(
        f"{self}: low={self.low} has no logarithm; use a bound above 0, or"
        " Uniform.")

  def _to_scale(self, value: Tree, library: ModuleType = jnp) -> Tree:
    return library.log(value)

  def _from_scale(self, position: Array) -> Array:
    return jnp.exp(position)


@dataclasses.dataclass(frozen=True)
class OneMinusLogUniform(Interval):
  """Log-uniform in 1 - value, with bounds in [0, 1), as for a discount.

  A perturbation multiplies 1 - value, so "up" makes the value smaller.
  """

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.low < 0 or np.float32(self.high) >= 1:
      raise ValueError(
        f"{self}: low={self.low} and high={self.high} must be in [0, 1) as"
        " float32; they bound the value, not 1 - value.")

  def _to_scale(self, value: Tree, library: ModuleType = jnp) -> Tree:
    return library.log1p(-value)

  def _from_scale(self, position: Array) -> Array:
    return -jnp.expm1(position)


@dataclasses.dataclass(frozen=True)
class Fixed:
  """A hyperparameter that is not searched, of one value for all members."""

  value: float

  def __post_init__(self) -> None:
    _check_number(self, "value", self.value)

  def sample(self, key: Key) -> Array:
    """Returns the value."""
    return jnp.asarray(self.value, jnp.float32)

  def perturb(self, value: Array, up: Array, factors: _Factors) -> Array:
    """Returns the fixed value in the shape of `value`.

    The direction `up` and the `factors` are ignored.
    """
    return jnp.full_like(value, self.value, dtype=jnp.float32)

  def same(self, first: Array, second: Array) -> Array:
    """Returns True."""
    return jnp.ones(jnp.broadcast_shapes(first.shape, second.shape), bool)


@dataclasses.dataclass(frozen=True)
class Choice:
  """One of a few values; a perturbation takes a neighbour in their order."""

  # Two or more, all different in float32, in their order if any.
  values: tuple[float, ...]

  def __post_init__(self) -> None:
    object.__setattr__(self, "values", tuple(self.values))
    for value in self.values:
      _check_number(self, "value", value)
    if len(self.values) < 2:
      raise ValueError(
        f"{self} leaves no choice; give two values or more, or use Fixed.")
    if len(np.unique(self._float32())) < len(self.values):
      raise ValueError(f"{self} has a value twice; give each once.")

  def _float32(self) -> np.ndarray:
    return np.asarray(self.values, np.float32)

  def index(self, value: Array) -> Array:
    """Returns the indices of the nearest values, int32 [...]."""
    distance = jnp.abs(jnp.asarray(value)[..., None] - self._float32())
    return jnp.argmin(distance, axis=-1).astype(jnp.int32)

  def at(self, index: Array) -> Array:
    """Returns the values at indices int [...], float32 [...]."""
    return jnp.asarray(self._float32())[index]

  def sample(self, key: Key) -> Array:
    """Draws each value with equal probability."""
    return self.at(jax.random.randint(key, (), 0, len(self.values)))

  def perturb(self, value: Array, up: Array, factors: _Factors) -> Array:
    """Takes the next value or the one before, reflected at the ends.

    `value` is [...]; `up`, bool [...], says which; `factors` are ignored.
    """
    last = len(self.values) - 1
    moved = jnp.abs(self.index(value) + jnp.where(up, 1, -1))
    return self.at(last - jnp.abs(last - moved))

  def same(self, first: Array, second: Array) -> Array:
    """Returns whether the nearest values are equal."""
    return self.index(first) == self.index(second)


Range = Interval | Fixed | Choice
"""A leaf of a search space."""


def bounds(drawn: Range) -> tuple[float, float]:
  """Returns the least and the largest value of a range."""
  numbers = np.hstack(dataclasses.astuple(drawn))
  return float(numbers.min()), float(numbers.max())


_KINDS = {
  "choice": Choice, "fixed": Fixed, "log_uniform": LogUniform,
  "one_minus_log_uniform": OneMinusLogUniform,
  "uniform": Uniform}


def parse_range(
  specification: str, flag: str = "search_space"
) -> tuple[str, Range]:
  """Reads a range from the command line.

  Args:
    specification: `name:kind:low:high` with the kind uniform, log_uniform or
      one_minus_log_uniform, `name:choice:value:value` with any number of
      values, or `name:fixed:value`.
    flag: that it was given by, for messages.

  Returns:
    The name and the range.
  """
  where = f"{flag}={specification!r}"
  name, *rest = specification.split(":")
  if not name or not rest:
    raise ValueError(f"{where} lacks a name or a kind; write it as {_EXAMPLE}.")
  kind, *texts = rest
  if kind not in _KINDS:
    raise ValueError(
      f"{where}: kind={kind!r} is unknown; {names.nearest_name(kind, _KINDS)}")
  fields = [field.name for field in dataclasses.fields(_KINDS[kind])]
  if kind != "choice" and len(texts) != len(fields):
    raise ValueError(
      f"{where} has {len(texts)} numbers after {kind!r}, not {len(fields)};"
      f" write it as {':'.join([name, kind, *fields])} with numbers for"
      f" {' and '.join(fields)}.")
  try:
    values = [float(text) for text in texts]
    if kind == "choice":
      return name, Choice(tuple(values))
    return name, _KINDS[kind](*values)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None
