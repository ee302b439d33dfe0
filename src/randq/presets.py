"""The agents of the paper, as data: a preset is a name and the exact settings behind it.

`PRESETS` says what makes each agent what it is; the defaults of `DQN` are the settings of the
authors' n-chain experiment. `DOMAINS` says what a domain changes for all agents alike, so that no
agent is tuned by itself. `docs/deviations.md` lists where the settings come from.
"""

from dataclasses import replace
from typing import Any

from randq.agents.dqn import DQN
from randq.config import one_of
from randq.exploration import Epsilon
from randq.posteriors import MNF, BayesLinear, Bootstrap, MeanField, Noisy, Point

PRESETS: dict[str, DQN] = {
    "dqn": DQN(posterior=Point(), epsilon=Epsilon(), double=False),
    "ddqn": DQN(posterior=Point(), epsilon=Epsilon()),
    "noisy-dqn": DQN(
        posterior=Noisy(),
        redraw_episode=False,
        redraw_update=False,
        redraw_every=1,
        target_noise="fresh",
    ),
    "bbqn": DQN(posterior=MeanField()),
    "mnf-dqn": DQN(posterior=MNF()),
    "boot-dqn": DQN(
        posterior=Bootstrap(shared="nothing", mask_probability=1.0), redraw_update=False
    ),
    "boot-dqn-prior": DQN(
        posterior=Bootstrap(shared="nothing", mask_probability=1.0, prior_scale=3.0),
        redraw_update=False,
    ),
    "bdqn": DQN(
        posterior=BayesLinear(), redraw_episode=False, redraw_update=False, redraw_every=100
    ),
}
"""Every agent by name."""

CLASSIC = {
    "update_every": 1,
    "target_every": 500,
    "gamma": 0.99,
    "hidden": (64, 64),
    "batch_size": 64,
    "replay_capacity": 50_000,
    "learning_starts": 500,
}
"""A first choice for continuous states; nothing has been searched for yet."""

DOMAINS: dict[str, dict[str, Any]] = {
    # The authors store the end of the chain's time limit as a terminal state.
    "nchain": {"truncation_terminates": True},
    # One hot cell at a time needs more updates than the chain: one for each step, larger ones, and
    # a target that follows sooner.
    "deep_sea": {
        "update_every": 1,
        "target_every": 20,
        "gamma": 0.99,
        "learning_rate": 3e-3,
        "hidden": (32,),
    },
    "mountain_car": CLASSIC,
    "cart_pole": CLASSIC,
    "acrobot": CLASSIC,
}
"""What a domain changes, for every agent."""


def preset(agent: str, env: str | None = None) -> DQN:
    """The settings of an agent, in a domain that has settings of its own."""
    one_of("agent", agent, PRESETS)
    return replace(PRESETS[agent], **DOMAINS.get(env or "", {}))
