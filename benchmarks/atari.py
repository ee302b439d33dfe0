"""Breakout from pixels: agent steps per second of our DQN and of Stable-Baselines3's, in one run.

    pip install -e ".[atari,peers]" opencv-python-headless
    python benchmarks/atari.py

Every contestant has the Nature network, batches of 32 and one update for 4 steps, and learns all
the time. The best result of each counts. For ours it also says where the time goes, what two seeds
come to, one on each core, and what a transition takes in the replay. Without `peers` only ours are
measured. Nothing else should run meanwhile: it takes about 10 minutes.
"""

import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# This folder comes last: its mujoco.py is not the package of that name.
sys.path[:] = [x for x in sys.path if x and Path(x).resolve() != HERE.resolve()] + [str(HERE)]

from contest import EVERY, Contest, Found  # noqa: E402

GAME = "Breakout"
WARM_UP, STEPS, CAPACITY = 400, 1_600, 10_000
OURS = ("randq dqn", "randq ddqn", "randq mnf-dqn")


def ours(name: str) -> Found:
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
    emulator, waits = 0.0, np.zeros(WARM_UP + STEPS)
    for i in range(WARM_UP + STEPS):
        if i == WARM_UP:
            emulator, start = 0.0, time.perf_counter()
        before = time.perf_counter()
        arrived = stepper.step(np.asarray(chosen))
        after = time.perf_counter()
        state, chosen = host.step(state, arrived)
        chosen.block_until_ready()
        emulator += after - before
        waits[i] = time.perf_counter() - after
    seconds = time.perf_counter() - start
    waits = waits[WARM_UP:].reshape(-1, every)
    acting = np.median(waits, axis=0).min()  # of a step that only acts
    learning = max(0.0, waits.sum() - acting * STEPS)
    sampling = _sampling(host, state) * STEPS / every
    return {
        "speed": STEPS / seconds,
        "emulator": emulator / seconds,
        "acting": acting * STEPS / seconds,
        "sampling": sampling / seconds,
        "updating": (learning - sampling) / seconds,
        "bytes": host.replay.size / host.replay.slots,
    }


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


def peer(name: str) -> Found:
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
    agent.learn(WARM_UP)
    start = time.perf_counter()
    agent.learn(STEPS, reset_num_timesteps=False)
    return {"speed": STEPS / (time.perf_counter() - start)}


def main() -> None:
    contest = Contest(
        __file__,
        GAME,
        OURS,
        {"stable-baselines3 dqn": "stable_baselines3"},
        lambda name: ours(name.split()[-1]) if name.startswith("randq") else peer(name),
    )
    best = contest.run()
    if best is None:
        return
    for name in OURS:
        parts = ("emulator", "acting", "sampling", "updating")
        print(f"{name}: " + ", ".join(f"{part} {best[name][part]:.0%}" for part in parts))
    dqn, _, mnf = (best[name]["speed"] for name in OURS)
    print(f"bytes of a transition in the replay: {best[OURS[0]]['bytes']:,.0f}")
    print(f"mnf-dqn / dqn: {mnf / dqn:.2f}")
    for name in [name for name in best if name not in OURS]:
        print(f"dqn / {name}: {dqn / best[name]['speed']:.2f}")
    alone = contest.alone(OURS[0], EVERY)["speed"]
    together = sum(found["speed"] for found in contest.side_by_side(OURS[0]))
    print(
        f"{len(EVERY)} seeds of dqn, one on each core: {together:,.0f}, one on all cores: "
        f"{alone:,.0f}, ratio {together / alone:.2f}"
    )


if __name__ == "__main__":
    main()
