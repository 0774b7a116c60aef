"""What tests of runs share."""

import pytest

from qdrl_haiku.programs.reports import pictures
from tests.programs.runs import common


@pytest.fixture(scope="module", autouse=True)
def _no_pictures():
  """Draws nothing in the end."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pictures, "draw_run_pictures", lambda path: None)
    yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
  """Where four generations were trained at a stretch; not to be changed."""
  logdir = tmp_path_factory.mktemp("runs") / "trained"
  common.run(logdir, 4)
  return logdir
