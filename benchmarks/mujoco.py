"""HalfCheetah, an update at every step: steps per second of our DDPG and of the peers, in one run.

    pip install -e ".[mujoco,peers]"
    python benchmarks/mujoco.py

Every contestant has two layers of 64 units for actor and critic, batches of 128, a replay of
100,000 and one update of both for each step of the environment; they take turns (contest.py). The
peers see observations as they are, and so do ours; with observations that are normalised, as the
presets have it in MuJoCo, ours are measured besides. For ours it also says where the time goes.
Without the extra `peers` only ours are measured; `one file` is a loop like that of CleanRL's script
(one_file.py). Nothing else should run meanwhile: it takes 5 to 8 minutes.
"""

import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# This folder comes last: its mujoco.py is not the package of that name.
sys.path[:] = [x for x in sys.path if x and Path(x).resolve() != HERE.resolve()] + [str(HERE)]

import one_file  # noqa: E402
from contest import Contest, Found, Play  # noqa: E402

ENVIRONMENT = "HalfCheetah-v5"
PLAIN = ("randq ddpg", "randq mnf-ddpg")
OURS = (*PLAIN, "randq normalised ddpg", "randq normalised mnf-ddpg")


def ours(name: str) -> Play:
    import jax
    import numpy as np

    from randq.envs.gym import find
    from randq.envs.gym.stepper import Stepper
    from randq.loops.host import Host
    from randq.presets import preset

    stepper = Stepper(find(ENVIRONMENT))
    domain = "mujoco" if "normalised" in name else "continuous"
    host = Host(preset(name.split()[-1], domain), stepper.spaces)
    state, chosen = host.step(host.init(0), stepper.reset(0))

    def play(steps: int) -> Found:
        nonlocal state, chosen
        jax.block_until_ready(chosen)
        spent = {"environment": 0.0, "update": 0.0, "transfer": 0.0}
        start = time.perf_counter()
        for _ in range(steps):
            before = time.perf_counter()
            actions = np.asarray(chosen)
            after = time.perf_counter()
            arrived = stepper.step(actions)
            stepped = time.perf_counter()
            state, chosen = host.step(state, arrived)
            spent["transfer"] += after - before
            spent["environment"] += stepped - after
            spent["update"] += time.perf_counter() - stepped
        seconds = time.perf_counter() - start
        return {"speed": steps / seconds} | {key: x / seconds for key, x in spent.items()}

    return play


def peer(name: str) -> Play:
    if name.startswith("one file"):
        return one_file.ddpg(ENVIRONMENT)
    import gymnasium

    settings = {
        "policy_kwargs": {"net_arch": [64, 64]},
        "batch_size": 128,
        "buffer_size": 100_000,
        "learning_starts": 128,
        "train_freq": 1,
        "gradient_steps": 1,
        "tau": 0.001,
    }
    env = gymnasium.make(ENVIRONMENT)
    if name.startswith("sbx"):
        from sbx import DDPG

        agent = DDPG("MlpPolicy", env, **settings)
    else:
        from stable_baselines3 import DDPG

        agent = DDPG("MlpPolicy", env, device="cpu", **settings)

    def play(steps: int) -> Found:
        start = time.perf_counter()
        agent.learn(steps, reset_num_timesteps=False)
        return {"speed": steps / (time.perf_counter() - start)}

    return play


def main() -> None:
    contest = Contest(
        __file__,
        ENVIRONMENT,
        OURS,
        {"stable-baselines3 ddpg": "stable_baselines3", "sbx ddpg": "sbx", "one file ddpg": "sbx"},
        lambda name: ours(name) if name.startswith("randq") else peer(name),
        warm_up=600,
    )
    outcome = contest.run()
    if outcome is None:
        return
    for name in OURS:
        parts = ("environment", "update", "transfer")
        shares = ", ".join(f"{part} {outcome.mean(name, part):.0%}" for part in parts)
        print(f"{name}: {shares} (update: and what is handed to it; transfer: of its action)")
    ddpg, mnf = map(outcome.speeds, PLAIN)
    outcome.ratio("mnf-ddpg / ddpg", mnf, ddpg)
    for name in outcome.names[len(OURS) :]:
        outcome.ratio(f"ddpg / {name}", ddpg, outcome.speeds(name))


if __name__ == "__main__":
    main()
