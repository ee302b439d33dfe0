"""HalfCheetah, an update at every step: steps per second of our DDPG and of the peers, in one run.

    pip install -e ".[mujoco,peers]"
    python benchmarks/mujoco.py

Every contestant has two layers of 64 units for actor and critic, batches of 128, a replay of
100,000 and one update of both for each step of the environment. Each runs in a process of its own,
free and pinned to one core, in turn with the others, and its best result counts. For ours it also
says where the time goes. Without the extra `peers` only ours are measured.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

WARM_UP, STEPS, ROUNDS = 1_000, 4_000, 2
ENVIRONMENT = "HalfCheetah-v5"
OURS = ("randq ddpg", "randq mnf-ddpg")
PEERS = {"stable-baselines3 ddpg": "stable_baselines3", "sbx ddpg": "sbx"}

Found = dict[str, float]


def ours(name: str) -> Found:
    import jax
    import numpy as np

    from randq.envs.gym import find
    from randq.envs.gym.stepper import Stepper
    from randq.loops.host import Host
    from randq.presets import preset

    stepper = Stepper(find(ENVIRONMENT))
    host = Host(preset(name, "continuous"), stepper.spaces)
    state, chosen = host.step(host.init(0), stepper.reset(0))
    spent = {"environment": 0.0, "call": 0.0, "wait": 0.0}
    for i in range(WARM_UP + STEPS):
        if i == WARM_UP:
            jax.block_until_ready(chosen)
            spent = dict.fromkeys(spent, 0.0)
            start = time.perf_counter()
        before = time.perf_counter()
        actions = np.asarray(chosen)  # the update is done when its action is there
        after = time.perf_counter()
        arrived = stepper.step(actions)
        stepped = time.perf_counter()
        state, chosen = host.step(state, arrived)
        spent["wait"] += after - before
        spent["environment"] += stepped - after
        spent["call"] += time.perf_counter() - stepped
    seconds = time.perf_counter() - start
    return {"speed": STEPS / seconds} | {key: x / seconds for key, x in spent.items()}


def peer(name: str) -> Found:
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
    agent.learn(WARM_UP)
    start = time.perf_counter()
    agent.learn(STEPS, reset_num_timesteps=False)
    return {"speed": STEPS / (time.perf_counter() - start)}


def measure(name: str) -> Found:
    """Steps per second in this process, and for ours the shares of the time."""
    return ours(name.split()[-1]) if name.startswith("randq") else peer(name)


def in_process(name: str, cores: set[int]) -> Found:
    """The same in a process of its own, which may use these cores."""
    threads = str(len(cores))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    code = f"import os; os.sched_setaffinity(0, {cores}); import runpy, sys; sys.argv = "
    code += f"['mujoco.py', '--one', {name!r}]; runpy.run_path({__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


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
    found: dict[str, dict[str, list[Found]]] = {}
    for _ in range(ROUNDS):
        for name in (*OURS, *peers):
            for way, cores in ways.items():
                found.setdefault(name, {}).setdefault(way, []).append(in_process(name, cores))
    best = {
        name: max((one for runs in by.values() for one in runs), key=lambda one: one["speed"])
        for name, by in found.items()
    }
    print(f"{ENVIRONMENT}, steps/s, best of {ROUNDS} runs each way; {len(every)} cores")
    for name, by in found.items():
        runs = "; ".join(
            f"{way}: " + ", ".join(f"{one['speed']:,.0f}" for one in x) for way, x in by.items()
        )
        print(f"  {name:24} {best[name]['speed']:>7,.0f}   ({runs})")
    for name in OURS:
        shares = ", ".join(f"{k} {best[name][k]:.0%}" for k in ("environment", "call", "wait"))
        print(f"{name}: {shares} (call: hand over and start the update; wait: for its action)")
    ddpg, mnf = (best[name]["speed"] for name in OURS)
    print(f"mnf-ddpg / ddpg: {mnf / ddpg:.2f}")
    for name in peers:
        print(f"ddpg / {name}: {ddpg / best[name]['speed']:.1f}")


if __name__ == "__main__":
    main()
