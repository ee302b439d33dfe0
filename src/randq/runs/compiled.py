"""A run of the compiled loop that is kept: one folder for each seed, and exact resume.

The seeds of a run are one program, and go on together: whoever resumes one, resumes all. Each has
its own checkpoint files. The newest that all seeds have is what counts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from randq.evaluation import GoodShare, Streak
from randq.loops.compiled import Compiled, Record, RunState
from randq.loops.host import Host, Memory
from randq.runs.checkpoints import Checkpoints, with_zeros
from randq.runs.directory import AGENT, RESULT, RunDirectory
from randq.runs.interrupts import Asked, InterruptedRunError
from randq.runs.plan import CompiledPlan
from randq.runs.recorder import Recorder
from randq.runs.train import EpisodeRow, Outcome, Progress, SeedLog, Training, train
from randq.settings import from_json
from randq.storage import StorageError

LAST = 100
"""Episodes that a mean return is over."""


def run_compiled(
    plan: CompiledPlan,
    directories: Sequence[RunDirectory],
    asked: Asked,
    warn: Callable[[str], None],
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Do what the plan says, from the last checkpoint on if there is one, and keep it."""
    keeper = Keeping(plan, directories, asked, warn)
    outcome = train(
        plan.agent,
        plan.env,
        range(plan.seed, plan.seed + plan.seeds),
        episodes=plan.episodes,
        steps=plan.steps,
        evaluate_every=plan.evaluate_every,
        keeper=keeper,
        watch=watch,
    )
    keeper.end(outcome)
    return outcome


class Keeping:
    """Keeps the seeds of a run in their folders."""

    def __init__(
        self,
        plan: CompiledPlan,
        directories: Sequence[RunDirectory],
        asked: Asked = lambda: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._plan, self._directories, self._asked, self._warn = plan, directories, asked, warn
        seeds = range(plan.seed, plan.seed + plan.seeds)
        self._recorders = [Recorder(d, plan, s) for d, s in zip(directories, seeds, strict=True)]
        self._checkpoints = [Checkpoints(directory.path) for directory in directories]
        self._saved_at = time.monotonic()
        self._told: set[int] = set()

    def begin(self, training: Training) -> None:
        self._training = training
        sizes = self._restore(training)
        for recorder, size in zip(self._recorders, sizes, strict=True):
            recorder.begin(size)

    def chunk(self, training: Training, record: Record, rows: list[list[EpisodeRow]]) -> None:
        spread = [np.asarray(x) for x in training.program.spread(training.state)]
        for i, (log, recorder) in enumerate(zip(training.logs, self._recorders, strict=True)):
            recorder.episodes((r.episode, r.step, r.length, r.train_return) for r in rows[i])
            recorder.evaluations(
                (r.eval_step, r.episode, r.eval_return, 0.0)
                for r in rows[i]
                if r.eval_return is not None
            )
            recorder.metrics(
                [
                    {
                        "step": training.steps,
                        "episode": log.episodes,
                        "rollout/ep_rew_mean": _mean(log.returns[-LAST:]),
                        "rollout/ep_len_mean": _mean(log.lengths[-LAST:]),
                        "train/loss": _mean(record.loss[:, i]),
                        "posterior/cost": _mean(record.cost[:, i]),
                        "posterior/q_std": float(spread[0][i]),
                        "posterior/action_disagreement": float(spread[1][i]),
                        "time/fps": training.steps / training.elapsed,
                        "time/time_elapsed": training.elapsed,
                    }
                ]
            )
        self._tell_of_losses(training, record)
        asked = self._asked()
        if asked or time.monotonic() - self._saved_at >= self._plan.checkpoint_every:
            self._save()
        if asked:
            raise InterruptedRunError(asked)

    def _tell_of_losses(self, training: Training, record: Record) -> None:
        """Warn, once for each seed, of a loss that is not finite: such an update is not made."""
        block = training.program.steps_per_block
        steps = training.steps - block * np.arange(len(record.loss))[::-1]
        due = steps >= self._plan.agent.learning_starts
        for i, seed in enumerate(training.seeds):
            bad = due & ~np.isfinite(record.loss[:, i])
            if bad.any() and seed not in self._told:
                self._told.add(seed)
                self._warn(
                    f"seed {seed}, step {steps[bad][0]}: the loss is not finite, so nothing is"
                    " learnt from such updates; lower learning_rate or gamma, or scale the rewards"
                )

    def end(self, outcome: Outcome) -> None:
        self._save()
        rows = outcome.as_json(self._plan.name, self._plan.env_name)["seeds"]
        for i, recorder in enumerate(self._recorders):
            state = _of_seed(self._training.state, i)
            host, memory = saved_agent(self._training.program, state)
            host.save(recorder.directory.path / AGENT, memory)
            recorder.end()
            recorder.directory.write_json(
                RESULT,
                {
                    "agent": self._plan.name,
                    "env": self._plan.env_name,
                    **rows[i],
                    "steps": self._training.steps,
                    "seconds": outcome.seconds,
                    "fingerprint": recorder.fingerprint(state),
                },
            )

    def _save(self) -> None:
        training = self._training
        host_state: RunState = jax.tree.map(_to_host, training.state)
        for i, log in enumerate(training.logs):
            tree = {"state": _of_seed(host_state, i), "history": _history(log)}
            header = {
                "seeds": list(training.seeds),
                "blocks": training.blocks,
                "elapsed": training.elapsed,
                "history": [len(x) for x in tree["history"]],
                "log": {
                    "streak": asdict(log.evaluated),
                    "good": asdict(log.trained),
                    "first_good": log.first_good,
                },
                "sizes": self._directories[i].sync(),
            }
            self._checkpoints[i].save(training.steps, tree, header)
        for checkpoints in self._checkpoints:
            checkpoints.prune()
        self._saved_at = time.monotonic()

    def _restore(self, training: Training) -> list[dict[str, int] | None]:
        """Put the run to its newest good checkpoint, and say how long the logs were then."""
        everywhere = set.intersection(*(set(c.steps) for c in self._checkpoints))
        newest = max((step for c in self._checkpoints for step in c.steps), default=None)
        for step in sorted(everywhere, reverse=True):
            try:
                sizes = self._load(training, step)
            except (StorageError, LookupError, TypeError, ValueError) as error:
                self._warn(f"the checkpoint of step {step} cannot be used: {error}")
                continue
            for checkpoints in self._checkpoints:
                checkpoints.drop(after=step)
            return sizes
        if everywhere and newest is not None:
            raise StorageError(f"{self._directories[0].path}: no checkpoint of it can be used")
        for checkpoints in self._checkpoints:
            checkpoints.drop(after=-1)
        return [None] * len(self._directories)

    def _load(self, training: Training, step: int) -> list[dict[str, int] | None]:
        like = jax.eval_shape(lambda state: _of_seed(state, 0), training.program.shape(1))
        states, logs, sizes, headers = [], [], [], []
        for i, checkpoints in enumerate(self._checkpoints):
            header = checkpoints.header(step)
            if header["seeds"] != list(training.seeds):
                raise StorageError(f"it is of the seeds {str(header['seeds'])[:100]}")
            counts = zip(header["history"], TYPES, strict=True)
            history = [jax.ShapeDtypeStruct((int(count),), dtype) for count, dtype in counts]
            tree = checkpoints.load(step, {"state": like, "history": with_zeros(history)})
            states.append(tree["state"])
            logs.append(_log(training.seeds[i], header["log"], tree["history"]))
            sizes.append({name: int(size) for name, size in header["sizes"].items()})
            headers.append(header)
        at = {header["blocks"] * training.program.steps_per_block for header in headers}
        if at != {step}:
            raise StorageError(f"it is of other steps ({str(sorted(at))[:100]})")
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        training.state = stacked._replace(block=states[0].block)
        training.logs[:] = logs
        training.blocks = int(headers[0]["blocks"])
        training.elapsed = float(headers[0]["elapsed"])
        return sizes  # type: ignore[return-value]


def saved_agent(program: Compiled, state: RunState) -> tuple[Host, Memory]:
    """An agent of the compiled loop, as `randq.load` takes it."""
    agent = state.agent._replace(
        draw=jax.tree.map(lambda x: x[None], state.agent.draw), stale=state.agent.stale[None]
    )
    memory = Memory(state.key, agent, state.block, jnp.zeros((), jnp.float32))
    return Host(program.agent, program.env.spaces), memory


TYPES = (np.float64, np.int32, np.int32, np.float64)
"""Of the arrays of a history."""


def _history(log: SeedLog) -> list[np.ndarray]:
    episodes, evaluations = zip(*log.evaluations, strict=True) if log.evaluations else ((), ())
    columns = log.returns, log.lengths, episodes, evaluations
    return [np.array(x, dtype) for x, dtype in zip(columns, TYPES, strict=True)]


def _log(seed: int, data: dict[str, Any], history: Sequence[np.ndarray]) -> SeedLog:
    returns, lengths, episodes, evaluations = (x.tolist() for x in history)
    return SeedLog(
        seed=seed,
        evaluated=from_json(Streak, data["streak"]),
        trained=from_json(GoodShare, data["good"]),
        episodes=len(returns),
        first_good=data["first_good"],
        returns=returns,
        lengths=lengths,
        evaluations=list(zip(episodes, evaluations, strict=True)),
    )


def _of_seed(state: RunState, i: int) -> RunState:
    """The part of a state that belongs to one seed."""
    rest: RunState = jax.tree.map(lambda x: x[i], state._replace(block=None))  # type: ignore[arg-type]
    return rest._replace(block=state.block)


def _to_host(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def _mean(values: Any) -> float:
    """Of the numbers that are numbers; NaN if there are none."""
    array = np.asarray(values, np.float64)
    array = array[np.isfinite(array)]
    return float(array.mean()) if array.size else float("nan")
