"""The agents of the paper, as data: a preset is a name and the exact settings behind it.

`PRESETS` says what makes each agent what it is, and `CONTINUOUS` so for those whose actions are
numbers; the defaults of `DQN` are the settings of the authors' n-chain experiment, and those of
`DDPG` of the paper's MuJoCo experiment. `DOMAINS` says what a domain changes for all agents alike,
so that no agent is tuned by itself. `docs/deviations.md` lists where the settings come from.
"""

from typing import Any

from randq.agents import DDPG, DQN, Agent
from randq.agents.dqn import NATURE
from randq.config import one_of, override, require
from randq.envs import IDS
from randq.exploration import Epsilon, OrnsteinUhlenbeck, ParameterNoise, Thompson
from randq.posteriors import MNF, BayesLinear, Bootstrap, MeanField, Noisy, Point
from randq.types import Spaces

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
"""Every agent that chooses one of several actions, by name."""

CONTINUOUS: dict[str, DDPG] = {
    "ddpg": DDPG(posterior=Point(), noise=OrnsteinUhlenbeck()),
    "param-noise-ddpg": DDPG(posterior=Point(), parameter_noise=ParameterNoise()),
    "noisy-ddpg": DDPG(posterior=Noisy(), target_noise="fresh"),
    "bbqn-ddpg": DDPG(posterior=MeanField()),
    "mnf-ddpg": DDPG(posterior=MNF(flow_steps=1, auxiliary_steps=1, flow_hidden=16)),
    # Its own, as the paper has none: each episode follows one head, as in Bootstrapped DQN.
    "boot-ddpg": DDPG(
        posterior=Bootstrap(shared="nothing", mask_probability=1.0), thompson=Thompson()
    ),
}
"""Every agent whose actions are numbers, by name."""

AGENTS: dict[str, Agent] = {**PRESETS, **CONTINUOUS}
"""Every agent by name."""

CLASSIC = {
    "update_every": 1,
    "target_every": 500,
    "gamma": 0.99,
    "hidden": (64, 64),
    "batch_size": 64,
    "replay_capacity": 50_000,
    "learning_starts": 500,
    "adam_eps": 1e-8,
    "alpha": 0.01,
    "scale_inputs": True,
}
"""A first choice for vectors of numbers, where nothing has been searched for."""

IMAGE = {
    "update_every": 4,
    "target_every": 1000,
    "gamma": 0.99,
    "hidden": (128,),
    "learning_rate": 2.5e-4,
    "replay_capacity": 20_000,
    "learning_starts": 1000,
}
"""A first choice for images."""

ATARI = {
    "update_every": 4,
    "target_every": 10_000,
    "gamma": 0.99,
    "hidden": (512,),
    "filters": NATURE,
    "learning_rate": 1e-4,
    "adam_eps": 1e-8,
    "replay_capacity": 1_000_000,
    "learning_starts": 50_000,
    "random_steps": 50_000,
    "reward_sign": True,
    "alpha": 1e-4,
}
"""As in the paper and the released code. Alpha is the middle of the paper's grid, not searched."""

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
    "mountain_car": {**CLASSIC, "update_every": 8, "gamma": 0.98},
    "cart_pole": CLASSIC,
    "acrobot": CLASSIC,
    "atari": ATARI,
    "vector": CLASSIC,
    "image": IMAGE,
}
"""What a domain changes, for every agent. The last two are for environments without a name here."""

CONTINUOUS_DOMAINS: dict[str, dict[str, Any]] = {
    "pendulum": {},
    "mountain_car_continuous": {},
    # The setup of Plappert et al., which the paper says it uses.
    "mujoco": {"normalise_observations": True},
    "continuous": {},
}
"""The same for actions that are numbers."""

FALLING = {"epsilon": Epsilon(end=0.05, decay=10_000, unit="steps")}
"""A first choice for exploration that is not a draw."""

SLOWLY = Epsilon(end=0.1, decay=1_000_000, unit="steps")
"""The paper's, for Atari games."""

OWN_MAXIMUM = {"double": False}
"""A target's own maximum, as in the paper's Algorithm 1 and in the released code for Atari."""

OWN: dict[str, dict[str, dict[str, Any]]] = {
    # The best of 8 trials each: docs/searches/mountain_car.md. What those do not vary, the noise
    # of mnf-dqn to begin with and the step of bbqn, was found by a search before that one.
    "mountain_car": {
        "mnf-dqn": {
            "posterior.noise": "example",
            "posterior.initial_std": 0.02,
            "alpha": 1e-4,
        },
        "bbqn": {
            "posterior.noise": "example",
            "posterior.initial_std": 0.01,
            "alpha": 1e-4,
            "learning_rate": 5e-4,
        },
        "noisy-dqn": {
            "posterior.sigma0": 0.1,
            "target_noise": "same",
            "learning_rate": 5e-4,
        },
        "ddqn": {"epsilon.decay": 30, "learning_rate": 5e-4},
        "dqn": {"epsilon.decay": 30, "learning_rate": 5e-4},
    },
    # From docs/searches/half_cheetah_start.md and half_cheetah_alpha.md; half_cheetah_grid.md and
    # half_cheetah_best.md found no alpha that is better by more than chance.
    "mujoco": {"mnf-ddpg": {"posterior.initial_std": 0.1, "alpha": 0.1}},
    "atari": {
        "dqn": {"epsilon": SLOWLY},
        "ddqn": {"epsilon": SLOWLY},
        "mnf-dqn": {
            "posterior.flow_steps": 2,
            "posterior.auxiliary_steps": 2,
            "posterior.flow_hidden": 50,
            **OWN_MAXIMUM,
        },
        "bbqn": OWN_MAXIMUM,
        "noisy-dqn": OWN_MAXIMUM,
        "boot-dqn": {"posterior.shared": "convolutions"},
        "boot-dqn-prior": {"posterior.shared": "convolutions"},
        # Our choice: the last layer follows whenever the target has moved.
        "bdqn": {"redraw_every": 1000, "condition_every": 2500},
    },
    **{
        domain: {"dqn": FALLING, "ddqn": FALLING}
        for domain in ("cart_pole", "acrobot", "vector", "image")
    },
}
"""What a domain changes for one agent: what a search found, how epsilon falls, or the paper's
own settings of it."""

MUJOCO = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
"""Gymnasium's tasks in MuJoCo."""

SAME = {
    "CartPole-v1": "cart_pole",
    "CartPole-v0": "cart_pole",
    "Acrobot-v1": "acrobot",
    "MountainCar-v0": "mountain_car",
    "Pendulum-v1": "pendulum",
    "MountainCarContinuous-v0": "mountain_car_continuous",
    **{f"{task}-v{version}": "mujoco" for task in MUJOCO for version in (4, 5)},
    **{env_id: name for name, env_id in IDS.items()},
}
"""Ids of Gymnasium, and the domain that they belong to; an environment of ours is its own."""


def domain(env_id: str | None, spaces: Spaces) -> str:
    """Which settings suit an environment of Gymnasium, known or unknown."""
    if (env_id or "").startswith("atari-"):
        return "atari"
    other = "image" if len(spaces.observation_shape) == 3 else "vector"
    known = SAME.get(env_id or "", "")
    # A wrapper keeps the id, but may make other actions, or pictures, of what is inside.
    if (known in CONTINUOUS_DOMAINS) == spaces.continuous and known and other == "vector":
        return known
    return "continuous" if spaces.continuous else other


def suited(domain: str) -> dict[str, Agent]:
    """Every agent for the actions of a domain, with its settings there."""
    agents = CONTINUOUS if domain in CONTINUOUS_DOMAINS else PRESETS
    return {agent: preset(agent, domain) for agent in agents}


def preset(agent: str, domain: str | None = None) -> Agent:
    """The settings of an agent, in a domain that has settings of its own."""
    one_of("agent", agent, AGENTS)
    for kind, agents, actions in (
        (DOMAINS, PRESETS, "actions to choose from"),
        (CONTINUOUS_DOMAINS, CONTINUOUS, "actions that are numbers"),
    ):
        takes = f"one for {actions}: " + ", ".join(agents)
        require(domain not in kind or agent in agents, "agent", agent, takes)
    shared = {**DOMAINS, **CONTINUOUS_DOMAINS}.get(domain or "", {})
    own = OWN.get(domain or "", {}).get(agent, {})
    changed: Agent = override(AGENTS[agent], {**shared, **own})
    return changed
