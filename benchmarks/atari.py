"""Breakout from pixels: agent steps per second of our DQN and of Stable-Baselines3's, in one run.

    pip install -e ".[atari,peers]" opencv-python-headless
    python benchmarks/atari.py

Every contestant has the Nature network, batches of 32 and one update for 4 steps, and learns all
the time; they take turns (contest.py). For ours it also says where the time goes, what two seeds
come to, one on each core, and what a transition takes in the replay. Without `peers` only ours are
measured. Nothing else should run meanwhile: it takes 5 to 8 minutes.
"""

import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# This folder comes last: its mujoco.py is not the package of that name.
sys.path[:] = [x for x in sys.path if x and Path(x).resolve() != HERE.resolve()] + [str(HERE)]

from contest import EVERY, Contest, Found, Play  # noqa: E402

GAME = "Breakout"
CAPACITY = 10_000
OURS = ("randq dqn", "randq ddqn", "randq mnf-dqn")


def ours(name: str) -> Play:
    import numpy as np

    from randq.config import override
    from randq.envs.gym import find
    from randq.envs.gym.stepper import Stepper
    from randq.loops.host import Host
    from randq.presets import preset

    settings = {"replay_capacity": CAPACITY, "learning_starts": 64, "random_steps": 0}
    agent = override(preset(name, "atari"), settings)
    stepper = Stepper(find(f"atari-paper/{GAME}"))
    host = Host(agent, stepper.spaces)
    state, chosen = host.step(host.init(0), stepper.reset(0))
    every = agent.update_every
    assert every is not None
    batch = None  # the seconds that one takes

    def play(steps: int) -> Found:
        nonlocal state, chosen, batch
        emulator, waits = 0.0, np.zeros(steps)
        start = time.perf_counter()
        for i in range(steps):
            before = time.perf_counter()
            arrived = stepper.step(np.asarray(chosen))
            after = time.perf_counter()
            state, chosen = host.step(state, arrived)
            chosen.block_until_ready()
            emulator += after - before
            waits[i] = time.perf_counter() - after
        seconds = time.perf_counter() - start
        acting = np.median(waits.reshape(-1, every), axis=0).min()  # of a step that only acts
        learning = max(0.0, waits.sum() - acting * steps)
        batch = batch or _sampling(host, state)
        sampling = min(learning, batch * steps / every)
        return {
            "speed": steps / seconds,
            "emulator": emulator / seconds,
            "acting": acting * steps / seconds,
            "sampling": sampling / seconds,
            "updating": (learning - sampling) / seconds,
            "bytes": host.replay.size / host.replay.slots,
        }

    return play


def _sampling(host, state) -> float:  # type: ignore[no-untyped-def]
    """Seconds that a batch takes."""
    import jax

    replay = host.unpacked(state).replay
    replay = jax.tree.map(jax.numpy.asarray, replay)
    sample = jax.jit(lambda replay, key: host.replay.sample(replay, key, host.agent.batch_size))
    keys = [jax.random.key(i) for i in range(51)]
    jax.block_until_ready(sample(replay, keys[0]))
    start = time.perf_counter()
    for key in keys[1:]:
        jax.block_until_ready(sample(replay, key))
    return (time.perf_counter() - start) / 50


def peer(name: str) -> Play:
    import ale_py  # noqa: F401, it registers the game
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    env = VecFrameStack(make_atari_env(f"{GAME}NoFrameskip-v4", n_envs=1), 4)
    agent = DQN(
        "CnnPolicy",
        env,
        device="cpu",
        buffer_size=CAPACITY,
        learning_starts=64,
        batch_size=32,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=10_000,
        exploration_final_eps=0.01,
    )

    def play(steps: int) -> Found:
        start = time.perf_counter()
        agent.learn(steps, reset_num_timesteps=False)
        return {"speed": steps / (time.perf_counter() - start)}

    return play


def main() -> None:
    contest = Contest(
        __file__,
        GAME,
        OURS,
        {"stable-baselines3 dqn": "stable_baselines3"},
        lambda name: ours(name.split()[-1]) if name.startswith("randq") else peer(name),
        warm_up=100,
        unit=4,
        side_by_side=OURS[0],
    )
    outcome = contest.run()
    if outcome is None:
        return
    for name in OURS:
        parts = ("emulator", "acting", "sampling", "updating")
        print(f"{name}: " + ", ".join(f"{part} {outcome.mean(name, part):.0%}" for part in parts))
    print(f"bytes of a transition in the replay: {outcome.mean(OURS[0], 'bytes'):,.0f}")
    dqn, ddqn, mnf = map(outcome.speeds, OURS)
    outcome.ratio("mnf-dqn / dqn", mnf, dqn)
    outcome.ratio("mnf-dqn / ddqn", mnf, ddqn)
    for name in outcome.names[len(OURS) :]:
        outcome.ratio(f"dqn / {name}", dqn, outcome.speeds(name))
    together = outcome.speeds(OURS[0], "side by side")
    title = f"{len(EVERY)} seeds of dqn, one on each core / one seed on all cores"
    outcome.ratio(title, together, outcome.speeds(OURS[0], "all cores"))


if __name__ == "__main__":
    main()
