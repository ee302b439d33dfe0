"""Algorithms: act, loss and update as pure functions of a state, for any posterior."""

from randq.agents.base import LOOK, Agent, AgentState, Metrics, Spread
from randq.agents.ddpg import DDPG, DDPGState
from randq.agents.dqn import DQN, DQNState
from randq.settings import KINDS

ALGORITHMS: dict[str, type[Agent]] = {"dqn": DQN, "ddpg": DDPG}
"""Every algorithm by name."""

KINDS[Agent] = ALGORITHMS  # so that settings can be read where either may stand

__all__ = [
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "LOOK",
    "Agent",
    "AgentState",
    "DDPGState",
    "DQNState",
    "Metrics",
    "Spread",
]
