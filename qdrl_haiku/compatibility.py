"""Combinations of libraries that are known to fail, told apart at import."""

import importlib.metadata
import importlib.util
import pathlib
import re


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


def _tensorflow_probability_suffix() -> str | None:
  """The suffix of the version that lies there: "dev" of nightly ones.

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
