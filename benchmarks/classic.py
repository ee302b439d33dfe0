"""CartPole, an update at every step: steps per second of our loops and of the peers, in one run.

    pip install -e ".[peers]"
    python benchmarks/classic.py

Every contestant has two layers of 64 units, batches of 64, a replay of 50,000 and one update for
each step of the environment. The best result of each counts. Without the extra `peers` only ours
are measured.
"""

import time

from contest import Contest, Found

WARM_UP, STEPS = 2_000, 6_000
OURS = ("randq host dqn", "randq host mnf-dqn", "randq compiled dqn, 10 seeds")


def host(name: str) -> float:
    import randq

    agent = randq.make(name, "CartPole-v1", target_every=500, learning_starts=500)
    agent.learn(WARM_UP, progress_bar=False)
    start = time.perf_counter()
    agent.learn(STEPS, progress_bar=False)
    return STEPS / (time.perf_counter() - start)


def compiled() -> float:
    import jax.numpy as jnp

    from randq.envs import CartPole
    from randq.loops.compiled import Compiled
    from randq.presets import preset

    seeds = 10
    program = Compiled(preset("dqn", "cart_pole"), CartPole(), STEPS, evaluate_every=10**6)
    state, _ = program.run(program.init(jnp.arange(seeds, dtype=jnp.int32)), WARM_UP)
    start = time.perf_counter()
    program.run(state, STEPS)
    return seeds * STEPS / (time.perf_counter() - start)


def peer(name: str) -> float:
    import gymnasium

    settings = {
        "policy_kwargs": {"net_arch": [64, 64]},
        "batch_size": 64,
        "buffer_size": 50_000,
        "learning_starts": 500,
        "train_freq": 1,
        "gradient_steps": 1,
        "target_update_interval": 500,
    }
    env = gymnasium.make("CartPole-v1")
    if name.startswith("sbx"):
        from sbx import DQN

        agent = DQN("MlpPolicy", env, **settings)
    else:
        from stable_baselines3 import DQN

        agent = DQN("MlpPolicy", env, device="cpu", **settings)
    agent.learn(WARM_UP)
    start = time.perf_counter()
    agent.learn(STEPS, reset_num_timesteps=False)
    return STEPS / (time.perf_counter() - start)


def measure(name: str) -> Found:
    """Steps per second in this process."""
    if "compiled" in name:
        return {"speed": compiled()}
    return {"speed": host(name.split()[-1]) if name.startswith("randq") else peer(name)}


def main() -> None:
    peers = {"stable-baselines3 dqn": "stable_baselines3", "sbx dqn": "sbx"}
    best = Contest(__file__, "CartPole", OURS, peers, measure).run()
    if best is None:
        return
    host_dqn, host_mnf, many = (best[name]["speed"] for name in OURS)
    print(f"mnf-dqn / dqn, host loop: {host_mnf / host_dqn:.2f}")
    for name in [name for name in best if name not in OURS]:
        print(f"host dqn / {name}: {host_dqn / best[name]['speed']:.1f}")
        print(f"compiled, 10 seeds / {name}: {many / best[name]['speed']:.1f}")


if __name__ == "__main__":
    main()
