"""A run of the host loop that is kept: one seed in an environment of Gymnasium."""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from randq.envs.gym.stepper import Position, Stepper
from randq.loops.host import Host, HostState
from randq.loops.session import Evaluation, Session, play
from randq.runs.checkpoints import Checkpoints, Segments, with_zeros
from randq.runs.directory import AGENT, RESULT, RunDirectory
from randq.runs.interrupts import Asked, InterruptedRunError
from randq.runs.plan import GymPlan
from randq.runs.recorder import Recorder
from randq.storage import StorageError

LAST = 100
"""Episodes that a mean return is over."""


@dataclass
class Counts:
    """What has come of a run so far."""

    steps: int = 0
    episodes: int = 0
    elapsed: float = 0.0
    last: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=LAST))
    """Return and length of the last episodes."""
    evaluation: float | None = None
    """The last one ..."""
    evaluated: int = 0
    """... and the step that it was at."""
    evaluating: bool = False
    """Whether one is under way."""
    inexact: list[int] = field(default_factory=list)
    """Steps at which the run was resumed and its episode had to begin anew."""

    def mean(self, column: int) -> float:
        return float(np.mean([row[column] for row in self.last])) if self.last else float("nan")


class GymRun:
    """One seed of a plan, in its folder."""

    def __init__(
        self,
        plan: GymPlan,
        seed: int,
        directory: RunDirectory,
        asked: Asked = lambda: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._plan, self._seed, self._directory = plan, seed, directory
        self._asked, self._warn = asked, warn
        self.recorder = Recorder(directory, plan, seed)
        self._checkpoints = Checkpoints(directory.path, lambda name: ".metrics" in name)
        self._segments = Segments(directory.path)
        stepper = Stepper(plan.make_env())
        self._host = Host(plan.agent, stepper.spaces)
        self._session = Session(self._host, stepper, seed)
        self.counts = Counts()
        self._kept = 0
        """Transitions that are on disk."""

    def run(self, watch: Callable[[Counts], None] = lambda counts: None) -> dict[str, Any]:
        """Do what the plan says, from the last checkpoint on if there is one, and keep it."""
        self.recorder.begin(self._restore())
        try:
            self._train(watch)
        except InterruptedRunError:
            raise
        except Exception:
            with suppress(StorageError):  # what was learnt until then is kept
                self._save_agent()
            raise
        finally:
            self._session.stepper.env.close()
        self._save_checkpoint()
        self._save_agent()
        self.recorder.end()
        counts = self.counts
        result = {
            "agent": self._plan.name,
            "env": self._plan.env,
            "seed": self._seed,
            "solved_at": None,
            "episodes": counts.episodes,
            "final_return": counts.evaluation,
            "steps": counts.steps,
            "seconds": counts.elapsed,
            "inexact": counts.inexact,
            "fingerprint": self.recorder.fingerprint(self._logical(self._state)),
        }
        self._directory.write_json(RESULT, result)
        return result

    def _train(self, watch: Callable[[Counts], None]) -> None:
        plan, counts = self._plan, self.counts
        self._evaluate_if_due(watch)  # where a signal stopped an evaluation
        before = saved = time.perf_counter()
        while counts.steps < plan.steps:
            taken, ended = self._session.advance()
            now = time.perf_counter()
            counts.elapsed, before = counts.elapsed + now - before, now
            counts.steps += taken
            for _, total, length in ended:
                counts.episodes += 1
                counts.last.append((total, length))
                self.recorder.episodes([(counts.episodes, counts.steps, length, total)])
            if counts.steps % plan.log_every == 0:
                self._log()
            self._evaluate_if_due(watch)
            watch(counts)
            asked = self._asked()
            if asked or now - saved >= plan.checkpoint_every:
                self._save_checkpoint()
                saved = now
            if asked:
                raise InterruptedRunError(asked)

    def _log(self) -> None:
        counts, vitals = self.counts, self._host.vitals(self._session.state)
        spread = self._host.spread(self._session.state)
        self.recorder.metrics(
            [
                {
                    "step": counts.steps,
                    "episode": counts.episodes,
                    "rollout/ep_rew_mean": counts.mean(0),
                    "rollout/ep_len_mean": counts.mean(1),
                    "train/loss": float(vitals.metrics.loss),
                    "posterior/cost": float(vitals.metrics.cost),
                    "posterior/q_std": float(spread.q_std),
                    "posterior/action_disagreement": float(spread.action_disagreement),
                    "time/fps": counts.steps / counts.elapsed,
                    "time/time_elapsed": counts.elapsed,
                }
            ]
        )

    def _evaluate_if_due(self, watch: Callable[[Counts], None]) -> None:
        plan, counts = self._plan, self.counts
        every = plan.resolved.evaluate_every
        assert every is not None
        due = counts.steps % every == 0 or counts.steps == plan.steps
        if not due or counts.steps == counts.evaluated:
            return
        counts.evaluating = True
        try:
            found = self._evaluate(watch)
        except InterruptedRunError:  # whoever goes on begins it again
            self._save_checkpoint()
            raise
        finally:
            counts.evaluating = False
        counts.evaluation, counts.evaluated = found.mean, counts.steps
        self.recorder.evaluations([(counts.steps, counts.episodes, found.mean, found.std)])

    def _evaluate(self, watch: Callable[[Counts], None]) -> Evaluation:
        """In an environment of its own, made anew: nothing of it has to be remembered."""
        stepper = Stepper(self._plan.make_env())
        spaces = stepper.spaces
        policy = self._host.policy(self._host.memory(self._session.state).agent)

        def act(seen: np.ndarray) -> np.ndarray:
            chosen = policy(seen if spaces.categories is None else seen - spaces.first_category)
            return chosen if spaces.continuous else chosen + spaces.first_action

        def look() -> None:
            watch(self.counts)
            if asked := self._asked():
                raise InterruptedRunError(asked)

        try:
            return play(stepper, act, self._plan.evaluation_episodes, self._seed, look)
        finally:
            stepper.env.close()

    def _save_agent(self) -> None:
        memory = self._host.memory(self._session.state)
        self._host.save(self._directory.path / AGENT, memory)

    # Checkpoints

    @property
    def _state(self) -> HostState:
        return self._host.unpacked(self._session.state)

    def _save_checkpoint(self) -> None:
        state, counts = self._state, self.counts
        replay = self._host.replay
        oldest, end = replay.span(state.replay)
        first = max(self._kept, oldest)
        for start, rows in replay.rows(state.replay, first, end):
            self._segments.add(start, rows)
        position = _plain(self._session.stepper.position)
        tree = {"state": _without_rows(state), "position": position.data}
        header = {
            "counts": {
                "steps": counts.steps,
                "episodes": counts.episodes,
                "elapsed": counts.elapsed,
                "last": list(counts.last),
                "evaluation": counts.evaluation,
                "evaluated": counts.evaluated,
                "inexact": counts.inexact,
            },
            "span": [oldest, end],
            "slots": replay.slots,
            "begun": position.begun,
            "position": {"shape": position.data.shape, "dtype": position.data.dtype.name},
            "tally": [self._session.tally.returns, self._session.tally.lengths],
            "sizes": self._directory.sync(),
        }
        self._checkpoints.save(counts.steps, tree, header)
        self._kept = end
        self._checkpoints.prune()
        kept = self._checkpoints.steps[-1]
        if kept != counts.steps:
            oldest, _ = self._checkpoints.header(kept)["span"]
        self._segments.prune(before=oldest)

    def _restore(self) -> dict[str, int] | None:
        """Put the run to its newest good checkpoint, and say how long the logs were then."""
        for step in self._checkpoints.steps:
            try:
                sizes = self._load(step)
            except (StorageError, LookupError, TypeError, ValueError) as error:
                self._warn(f"the checkpoint of step {step} cannot be used: {error}")
                continue
            self._checkpoints.drop(after=step)
            self._segments.drop(after=self._kept)
            return sizes
        if self._checkpoints.steps:
            raise StorageError(f"{self._directory.path}: no checkpoint of it can be used")
        self._segments.drop(after=-1)
        return None

    def _load(self, step: int) -> dict[str, int]:
        header = self._checkpoints.header(step)
        like, replay, session = self._host.shape(), self._host.replay, self._session
        position = header["position"]
        data = jax.ShapeDtypeStruct(tuple(map(int, position["shape"])), np.dtype(position["dtype"]))
        tree = self._checkpoints.load(
            step, {"state": _without_rows(like), "position": with_zeros(data)}
        )
        state: HostState = tree["state"]
        span = replay.span(state.replay)
        if list(span) != header["span"] or int(header["slots"]) != replay.slots:
            raise StorageError("its replay is of another size")
        if header["counts"]["steps"] != step:
            raise StorageError("it is of another step")
        for start, rows in self._segments.read(*span, replay.row):
            session.state = self._host.put(session.state, rows, start)
        counts = {"evaluated": step, **header["counts"]}  # earlier versions did not say
        last = deque(((float(a), int(b)) for a, b in counts["last"]), maxlen=LAST)
        self.counts = Counts(**{**counts, "last": last})
        self._kept = span[1]
        session.state = self._host.rebuilt(session.state, state)
        self._return_to(Position(header["begun"], tree["position"]), header["tally"], state)
        return {name: int(size) for name, size in header["sizes"].items()}

    def _return_to(self, position: Position, tally: list[Any], state: HostState) -> None:
        """Bring the environment to where it was, or begin an episode and say so."""
        session = self._session
        known = position.begun is not None or len(position.data) > 0
        if known and session.stepper.return_to(position, np.asarray(state.observation)):
            returns, lengths = tally
            for i in range(session.stepper.num_envs):
                session.tally.returns[i] = float(returns[i])
                session.tally.lengths[i] = int(lengths[i])
            session.actions = np.asarray(state.action)
            return
        self.counts.inexact.append(self.counts.steps)
        self._warn(
            f"step {self.counts.steps}: the environment cannot be brought back to where it was;"
            " its episode begins anew, so the run is not the same as one without a break"
        )

    def _logical(self, state: HostState) -> Any:
        """The state with a checksum of the rows of its replay that matter, in order."""
        replay, digest = self._host.replay, hashlib.sha256()
        for _, rows in replay.rows(state.replay, *replay.span(state.replay)):
            for array in rows:
                digest.update(array.tobytes())
        found = np.frombuffer(digest.digest(), np.uint8)
        return state._replace(replay=state.replay._replace(items=found))


def _without_rows(state: HostState) -> HostState:
    return state._replace(replay=state.replay._replace(items=None))


def _plain(position: Position | None) -> Position:
    """What can be written down of a position; without any data if there is no way back to it."""
    nowhere = Position(None, np.zeros(0, np.uint8))
    try:
        json.dumps(None if position is None else position.begun)
    except (TypeError, ValueError):  # a generator whose state is more than numbers and words
        return nowhere
    return nowhere if position is None else position
