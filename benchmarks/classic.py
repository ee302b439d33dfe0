"""CartPole, an update at every step: steps per second of our loops and of the peers, in one run.

    pip install -e ".[peers]"
    python benchmarks/classic.py

Every contestant has two layers of 64 units, batches of 64, a replay of 50,000 and one update for
each step of the environment. Each runs in a process of its own, free and pinned to one core, in
turn with the others, and its best result counts. Without the extra `peers` only ours are measured.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

WARM_UP, STEPS, ROUNDS = 2_000, 6_000, 2
OURS = ("randq host dqn", "randq host mnf-dqn", "randq compiled dqn, 10 seeds")
PEERS = {"stable-baselines3 dqn": "stable_baselines3", "sbx dqn": "sbx"}


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


def measure(name: str) -> float:
    """Steps per second in this process."""
    if "compiled" in name:
        return compiled()
    return host(name.split()[-1]) if name.startswith("randq") else peer(name)


def in_process(name: str, cores: set[int]) -> float:
    """The same in a process of its own, which may use these cores."""
    threads = str(len(cores))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    code = f"import os; os.sched_setaffinity(0, {cores}); import runpy, sys; sys.argv = "
    code += f"['classic.py', '--one', {name!r}]; runpy.run_path({__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    peers = [name for name, module in PEERS.items() if importlib.util.find_spec(module)]
    every = os.sched_getaffinity(0)
    ways = {"all cores": every, "one core": {min(every)}}
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(ROUNDS):
        for name in (*OURS, *peers):
            for way, cores in ways.items():
                speed = in_process(name, cores)
                found.setdefault(name, {}).setdefault(way, []).append(speed)
    best = {name: max(max(speeds) for speeds in by.values()) for name, by in found.items()}
    print(f"CartPole, steps/s, best of {ROUNDS} runs each way; {len(every)} cores")
    for name, by in found.items():
        runs = "; ".join(f"{w}: " + ", ".join(f"{s:,.0f}" for s in x) for w, x in by.items())
        print(f"  {name:30} {best[name]:>9,.0f}   ({runs})")
    host_dqn, host_mnf, many = (best[name] for name in OURS)
    print(f"mnf-dqn / dqn, host loop: {host_mnf / host_dqn:.2f}")
    for name in peers:
        print(f"host dqn / {name}: {host_dqn / best[name]:.1f}")
        print(f"compiled, 10 seeds / {name}: {many / best[name]:.1f}")


if __name__ == "__main__":
    main()
