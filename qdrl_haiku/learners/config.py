"""The settings that several learners have."""

import dataclasses

from qdrl_haiku.config import Settings, setting
from qdrl_haiku.networks import NetworkConfig


@dataclasses.dataclass(frozen=True)
class AgentConfig(Settings):
  """Shapes an agent's networks and what they see."""

  title = "Learner"

  network: NetworkConfig = NetworkConfig()
  normalize_observations: bool | None = setting(
    None,
    "Whether networks see observations normalised by the agent's own running "
    "statistics; by default they do, but in a repertoire, whose variations mix "
    "the weights of two parents.",
  )

  @property
  def normalizes(self) -> bool:
    """Whether observations are normalised."""
    return self.normalize_observations is not False


@dataclasses.dataclass(frozen=True)
class SoftAgentConfig(AgentConfig):
  """Shapes an agent whose policy is rewarded for its entropy."""

  learn_temperature: bool = setting(
    True,
    "Whether the temperature is learned; if not, it stays at "
    "--initial_temperature.",
    offered=False,
  )
  initial_temperature: float = setting(
    0.3, "Temperature of the entropy at first.", low=1e-30, high=1e30
  )


def policy_delay() -> int:
  """Declares how many critic steps a policy step is delayed by."""
  return setting(
    2,
    "Critic steps per policy step of td3, crossq and xqc; 1 moves the policy "
    "with every critic step.",
    low=1,
  )


@dataclasses.dataclass(frozen=True)
class DelayedSoftAgentConfig(SoftAgentConfig):
  """Shapes such an agent, whose policy moves after several critic steps."""

  # 3 in the papers, and TD3's here, so that steps are cut up alike.
  policy_delay: int = policy_delay()
