"""CartPole, an update at every step: steps per second of our loops and of the peers, in one run.

    pip install -e ".[peers]"
    python benchmarks/classic.py

Every contestant has two layers of 64 units, batches of 64, a replay of 50,000 and one update for
each step of the environment; they take turns (contest.py). Without the extra `peers` only ours are
measured; `one file` is a loop like that of CleanRL's script (one_file.py). Nothing else should run
meanwhile: it takes 5 to 8 minutes.
"""

import time

import one_file
from contest import Contest, Found, Play

OURS = ("randq host dqn", "randq host mnf-dqn", "randq compiled dqn, 10 seeds")


def host(name: str) -> Play:
    import randq

    agent = randq.make(name, "CartPole-v1", target_every=500, learning_starts=500)
    return timed(lambda steps: agent.learn(steps, progress_bar=False))


def compiled() -> Play:
    import jax
    import jax.numpy as jnp

    from randq.envs import CartPole
    from randq.loops.compiled import Compiled
    from randq.presets import preset

    seeds = 10
    program = Compiled(preset("dqn", "cart_pole"), CartPole(), 10**6, evaluate_every=10**6)
    state = program.init(jnp.arange(seeds, dtype=jnp.int32))

    def run(steps: int) -> None:
        nonlocal state
        state, _ = program.run(state, steps)
        jax.block_until_ready(state)

    return timed(run, seeds)


def peer(name: str) -> Play:
    if name.startswith("one file"):
        return one_file.dqn("CartPole-v1")
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
    return timed(lambda steps: agent.learn(steps, reset_num_timesteps=False))


def timed(learn, seeds: int = 1) -> Play:  # type: ignore[no-untyped-def]
    def play(steps: int) -> Found:
        start = time.perf_counter()
        learn(steps)
        return {"speed": seeds * steps / (time.perf_counter() - start)}

    return play


def enter(name: str) -> Play:
    """A contestant in this process."""
    if "compiled" in name:
        return compiled()
    return host(name.split()[-1]) if name.startswith("randq") else peer(name)


def main() -> None:
    peers = {"stable-baselines3 dqn": "stable_baselines3", "sbx dqn": "sbx", "one file dqn": "sbx"}
    outcome = Contest(__file__, "CartPole", OURS, peers, enter, warm_up=1_000).run()
    if outcome is None:
        return
    dqn, mnf, many = map(outcome.speeds, OURS)
    outcome.ratio("mnf-dqn / dqn, host loop", mnf, dqn)
    for name in outcome.names[len(OURS) :]:
        outcome.ratio(f"host dqn / {name}", dqn, outcome.speeds(name))
        outcome.ratio(f"compiled, 10 seeds / {name}", many, outcome.speeds(name))


if __name__ == "__main__":
    main()
