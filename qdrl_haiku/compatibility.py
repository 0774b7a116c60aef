"""Combinations of libraries that are known to fail, told before they do."""

import functools
import importlib.metadata
import importlib.util
import pathlib
import re

# From so many on the jax of that issue lets rows at the end be wrong.
_NUM_ROWS = 32_769


def check() -> None:
  """Refuses combinations that compute wrong numbers or don't import.

  Raises:
    ImportError: if jax is 0.10.2, or if a stable tensorflow-probability lies
      where tfp-nightly should; says how to mend it.
  """
  if importlib.metadata.version("jax") == "0.10.2":
    raise ImportError(
      "jax 0.10.2 computes wrong numbers on CPU (jax issue 39103); install "
      "another: pip install 'jax!=0.10.2' 'jaxlib!=0.10.2'"
    )
  if _tensorflow_probability_suffix() == "":
    raise ImportError(
      "a stable tensorflow-probability has overwritten tfp-nightly, without "
      "which distrax and rlax don't import; mend it: pip uninstall -y "
      "tensorflow-probability && pip install --force-reinstall --no-deps "
      "tfp-nightly"
    )


@functools.cache
def check_numbers() -> None:
  """Refuses a jax that computes wrong numbers on CPUs, whatever its version.

  A jitted sum of jax issue 39103 is computed anew, once in a process. Not at
  import: jax looks for devices then, and the user may still have to say which.

  Raises:
    ImportError: if the number is wrong.
  """
  import jax

  found, expected = _last_square(), float(_NUM_ROWS - 1) ** 2
  if jax.default_backend() == "cpu" and found != expected:
    version = importlib.metadata.version("jaxlib")
    raise ImportError(
      f"jax {version} computes wrong numbers on CPU (as in jax issue 39103: "
      f"{found:.0f} instead of {expected:.0f}); install another: pip install "
      f"'jax!={version}' 'jaxlib!={version}'"
    )


def _last_square() -> float:
  """Computes the square of the last of the numbers 0, 1, ..., by matrices."""
  import jax
  import jax.numpy as jnp

  def squares() -> jax.Array:
    numbers = jnp.arange(_NUM_ROWS, dtype=jnp.float32)
    rows = jnp.pad(numbers[:, None], ((0, 0), (0, 2)))
    matrix = jax.lax.optimization_barrier(jnp.eye(3))
    return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)

  # It may be asked for while something else is traced.
  with jax.ensure_compile_time_eval():
    return float(jax.jit(squares)()[-1])


def _tensorflow_probability_suffix() -> str | None:
  """Returns the suffix of the version that lies there: "dev" of nightly ones.

  It is read from the file, since the record of what was installed still names
  the package that was overwritten, and since importing it takes long.
  """
  spec = importlib.util.find_spec("tensorflow_probability")
  if spec is None or spec.origin is None:
    return None
  file = pathlib.Path(spec.origin).parent / "python" / "version.py"
  if not file.exists():
    return None
  found = re.search(
    r"^_VERSION_SUFFIX = '(.*)'", file.read_text(), re.MULTILINE
  )
  return found.group(1) if found else None
