"""Any Gymnasium environment, single or vector, as the host loop sees it: a vector, and checked."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.wrappers import FrameStackObservation, OrderEnforcing, PassiveEnvChecker

from randq.config import require
from randq.envs.base import flat_bound
from randq.types import Spaces, is_box

GymEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


YES, NO = np.ones(1, bool), np.zeros(1, bool)
RETURNED, CHOSE = "the environment returned", "the action is"


class BrokenEnvironmentError(RuntimeError):
    """An environment broke its own contract; what was learnt until then is kept."""


class Arrived(NamedTuple):
    """What a step of each environment led to: arrays with a leading axis of environments."""

    observation: Any
    """What to act on now: after the end of an episode, the first observation of the next."""
    final: Any
    """The true next observation, also at the end of an episode."""
    reward: Any
    terminated: Any
    truncated: Any
    taken: Any
    """Whether the action was taken; not where an environment only reset itself."""
    stops: Any
    """Whether there is nothing to bootstrap from although the episode goes on: a life was lost."""


class Position(NamedTuple):
    """How to get to a place in an episode."""

    begun: dict[str, Any] | None
    """How the episode began, as JSON has it: the `seed` that the environment had before, and the
    state `rng` of its random generator then, which is None if it was just seeded ..."""
    data: np.ndarray
    """... and what was done in it since. If `begun` is None, what the environment saved itself."""


def spaces_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spaces:
    """The two spaces as plain numbers, or a refusal in one sentence."""
    actions = _actions_of(action)

    def make(shape: tuple[int, ...], **more: Any) -> Spaces:
        return Spaces(shape, **actions, **more)

    if isinstance(observation, spaces.Discrete):
        first = int(observation.start)
        return make((), categories=int(observation.n), first_category=first, dtype="int32")
    if isinstance(observation, spaces.MultiBinary):
        zeros = np.zeros(observation.shape)
        return make(observation.shape, low=flat_bound(zeros), high=flat_bound(zeros + 1))
    require(
        isinstance(observation, spaces.Box),
        "observation space",
        observation,
        "a Box, Discrete or MultiBinary space"
        " (gymnasium.wrappers.FlattenObservation makes a Box of most others)",
    )
    assert isinstance(observation, spaces.Box)
    shape = tuple(int(size) for size in observation.shape)
    ok = len(shape) <= 3 and 0 not in shape
    require(ok, "observation space", observation, "at most three axes, none of them empty")
    # What fits into a byte is kept in a byte.
    dtype: Any = observation.dtype.name
    dtype = dtype if dtype in ("uint8", "bool") else "float32"
    if len(shape) == 3:
        return make(shape, dtype=dtype)
    low, high = flat_bound(observation.low), flat_bound(observation.high)
    return make(shape, low=low, high=high, dtype=dtype)


def _actions_of(action: spaces.Space[Any]) -> dict[str, Any]:
    """What is known of actions: how many there are, or the bounds of the numbers of one."""
    if isinstance(action, spaces.Discrete):
        return {"num_actions": int(action.n), "first_action": int(action.start)}
    is_numbers = isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating)
    takes = "a Discrete space, or a Box of floating-point numbers"
    require(is_numbers, "action space", action, takes)
    assert isinstance(action, spaces.Box)
    low, high = (tuple(x.astype(np.float64).ravel().tolist()) for x in (action.low, action.high))
    ok = len(low) > 0 and all(map(is_box, low, high))
    takes = "finite bounds, the lower one first, that are less than a million apart"
    require(ok, "action space", action, f"{takes} (gymnasium.wrappers can set some)")
    shape = None if action.shape == (len(low),) else tuple(int(size) for size in action.shape)
    return {"num_actions": len(low), "action_low": low, "action_high": high, "action_shape": shape}


class Stepper:
    """Resets and steps an environment, and stops at once when it returns what it must not."""

    def __init__(self, env: GymEnv) -> None:
        require(
            isinstance(env, gymnasium.Env | VectorEnv),
            "env",
            env,
            "a Gymnasium environment, single or vector, or the name of one",
        )
        self.env = env
        self._vector = isinstance(env, VectorEnv)
        self.observation_space: spaces.Space[Any] = (
            env.single_observation_space if isinstance(env, VectorEnv) else env.observation_space
        )
        self.action_space: spaces.Space[Any] = (
            env.single_action_space if isinstance(env, VectorEnv) else env.action_space
        )
        found = spaces_of(self.observation_space, self.action_space)
        self.spaces = replace(found, stack=_stack(env))
        self.num_envs = env.num_envs if isinstance(env, VectorEnv) else 1
        self.env_id = _id(env)
        """What Gymnasium knows it as; None if that is nothing, or not the same for all of them."""
        self._autoreset = AutoresetMode.SAME_STEP
        if isinstance(env, VectorEnv):
            mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
            modes = {m: m for m in AutoresetMode} | {m.value: m for m in AutoresetMode}
            require(mode in modes, "autoreset_mode", mode, f"one of {list(AutoresetMode)}")
            self._autoreset = modes[mode]
        bounds = (*(self.spaces.action_low or ()), *(self.spaces.action_high or ()))
        self._rounding = 1e-5 * (1 + max(map(abs, bounds), default=0.0))
        """By how much a number may lie beyond its bound."""
        self._dtype = np.dtype(self.spaces.dtype)
        self._floating = self._dtype == np.float32
        self._shape = self.spaces.observation_shape
        self._all = np.ones(self.num_envs, bool)
        self._none = np.zeros(self.num_envs, bool)
        self._seen: np.ndarray | None = None
        """What was seen last, if observations are stacks of frames."""
        self._resetting = ~self._all
        """Where the next step only resets."""
        self.steps = 0
        """Steps of each environment so far."""
        self._seed: int | None = None
        """What the environment was seeded with last."""
        self._begun: dict[str, Any] | None = None
        """How the episode began; None where that is not known."""
        self._taken: list[np.ndarray] = []
        """What was done in it since."""

    def reset(self, seed: int | None = None) -> Arrived:
        """Begin an episode everywhere; nothing was taken to get there."""
        self._same_spaces()
        observation = self._begin(seed)
        self._resetting = ~self._all
        nothing, no = np.zeros(self.num_envs, np.float32), self._none
        return self._in_order(Arrived(observation, observation, nothing, no, no, no, no))

    def step(self, actions: np.ndarray) -> Arrived:
        """Take an action in each environment: counted from 0, or as many numbers as it is."""
        self.steps += 1
        if not self._vector:
            return self._play(actions)
        result = self.env.step(self._for_env(actions))
        raw, reward, terminated, truncated, info = result
        observation = final = self._checked(raw)
        reward, taken = self._rewards(np.asarray(reward)), ~self._resetting
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        ended = terminated | truncated
        if ended.any():
            self._same_spaces()
            if self._autoreset is AutoresetMode.SAME_STEP:
                final = self._finals(info, observation, ended)
            elif self._autoreset is AutoresetMode.DISABLED:
                options = {"reset_mask": ended}
                observation = self._checked(self.env.reset(options=options)[0])
        if self._autoreset is AutoresetMode.NEXT_STEP:
            self._resetting = ended
        stops = np.asarray(info.get("life_lost", self._none), bool) & taken
        return self._in_order(
            Arrived(observation, final, reward, terminated, truncated, taken, stops)
        )

    def _begin(self, seed: int | None) -> np.ndarray:
        self._seed = seed if seed is not None else self._seed
        self._begun, self._taken = None, []
        if not self._vector and self._seed is not None:
            rng = None if seed is not None else _rng(self.env.unwrapped)
            self._begun = {"seed": self._seed, "rng": rng}
        begun: Any = self.env.reset(seed=seed)
        if not isinstance(begun, tuple) or len(begun) != 2:
            raise self._error(f"{_short(begun)} from reset", "it must be (observation, info)")
        return self._checked(begun[0])

    @property
    def position(self) -> Position | None:
        """How to get back to where the environment is; None if there is no way."""
        if self._saves:
            return Position(None, np.asarray(self._inner.save()))
        if self._begun is None:
            return None
        none = np.asarray(self.spaces.an_action())[None][:0]
        return Position(self._begun, np.concatenate([none, *self._taken]))

    @property
    def _inner(self) -> Any:
        return self.env.unwrapped

    @property
    def _saves(self) -> bool:
        """Whether the environment can save all that it is, which no wrapper has a part of."""
        env: Any = self.env
        while isinstance(env, OrderEnforcing | PassiveEnvChecker):
            env = env.env
        return env is self._inner and hasattr(env, "save") and hasattr(env, "restore")

    def return_to(self, position: Position, observation: np.ndarray) -> bool:
        """Bring the environment back; whether that led to the same observation.

        An environment with the methods `save`, which gives an array of bytes, and `restore`, which
        takes it and gives the observation, does that itself. Otherwise its episode is played again
        up to where it was. That is exact for an environment whose episodes depend on nothing but
        its random generator: `np_random`, as Gymnasium asks for, or else what it offers as
        `rng_state`.
        """
        failed = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
        self._seen, begun = None, position.begun
        if begun is None:
            self._begin(None)
            try:
                raw = self._inner.restore(position.data)
            except failed:
                return False  # it saves itself in another way now
            seen = self._checked(raw)
        else:
            seen = self._begin(int(begun["seed"]))
            if begun["rng"] is not None:
                try:
                    _set_rng(self.env.unwrapped, begun["rng"])
                except failed:
                    return False  # it has another generator now
                seen = self._begin(None)
            for i in range(len(position.data)):
                arrived = self._play(position.data[i : i + 1])
                seen = arrived.observation
                if arrived.terminated[0] or arrived.truncated[0]:
                    return False
        self._seen = seen if self.spaces.stack else None
        return np.array_equal(seen, observation)

    def _for_env(self, actions: np.ndarray) -> Any:
        """Actions in the form, type and bounds of the environment's space."""
        space = self.action_space
        if not isinstance(space, spaces.Box):
            if not all(0 <= action < self.spaces.num_actions for action in actions.tolist()):
                raise self._error(f"{actions + self.spaces.first_action}", f"takes {space}", CHOSE)
            if not self._vector:
                return [actions.item(0) + self.spaces.first_action]
            return actions.astype(np.int64) + self.spaces.first_action
        shaped = actions.reshape(-1, *space.shape).astype(space.dtype)
        # Rounded to the space's own type, a number may lie beyond a bound by its last digit.
        within = np.clip(shaped, space.low, space.high)
        if not np.abs(within - shaped).max() <= self._rounding:  # nor is NaN
            raise self._error(f"{shaped}", f"takes {space}", CHOSE)
        return within

    def _play(self, actions: np.ndarray) -> Arrived:
        """A step of the only environment, which can be taken again another time."""
        self._taken.append(actions)
        return self._step_one(self._for_env(actions)[0])

    def _step_one(self, action: Any) -> Arrived:
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            hint = "it must be (observation, reward, terminated, truncated, info)"
            raise self._error(f"{_short(result)} from step", hint)
        raw, reward, terminated, truncated, info = result
        observation = final = self._checked(raw)
        if terminated or truncated:
            self._same_spaces()
            observation = self._begin(None)
        ends = YES if terminated else NO, YES if truncated else NO
        stops = YES if info.get("life_lost") else NO
        return self._in_order(Arrived(observation, final, self._rewards(reward), *ends, YES, stops))

    def _in_order(self, arrived: Arrived) -> Arrived:
        """The same, if stacks of frames are what they should be: a replay relies on it."""
        if not self.spaces.stack:
            return arrived
        taken, ended = arrived.taken, arrived.terminated | arrived.truncated
        seen, before, after = arrived.observation, self._seen, arrived.final
        if before is not None and not np.array_equal(after[taken, :-1], before[taken, 1:]):
            raise self._error("older frames that are not those before", self._in_a_stack)
        # Where an environment resets itself with the next step, the end is what is seen until then.
        began = ~taken if self._autoreset is AutoresetMode.NEXT_STEP else ~taken | ended
        if began.any() and not (seen[began, :-1] == seen[began, -1:]).all():
            raise self._error("a first stack of different frames", self._in_a_stack)
        self._seen = seen
        return arrived

    @property
    def _in_a_stack(self) -> str:
        return f"it has stacks of {self.spaces.stack} frames, the newest last, the first repeated"

    def _finals(self, info: dict[str, Any], observation: np.ndarray, ended: np.ndarray) -> Any:
        if "final_obs" not in info:
            raise self._error("no final_obs in info", "SAME_STEP autoreset must put it there")
        final = observation.copy()
        for i in np.flatnonzero(ended):
            one = np.asarray(info["final_obs"][i])[None]
            final[i] = self._converted(one, envs=1)[0]
        return final

    def _checked(self, raw: Any) -> np.ndarray:
        try:
            array = np.asarray(raw)
        except ValueError:
            hint = f"its space says {self._shape}"
            raise self._error(f"an observation that is no array, {_short(raw)}", hint) from None
        return self._converted(array, self.num_envs)

    def _converted(self, raw: np.ndarray, envs: int) -> np.ndarray:
        if not self._vector:
            raw = raw[None]
        if raw.shape != (envs, *self._shape):
            hint = f"its space says {self._shape}"
            raise self._error(f"an observation of shape {raw.shape[1:]}", hint)
        if raw.dtype.kind not in "fiub":
            raise self._error(f"an observation of type {raw.dtype}", "it must be numbers")
        if self.spaces.categories is not None:
            index = raw.astype(np.int32) - self.spaces.first_category
            if index.min() < 0 or index.max() >= self.spaces.categories:
                raise self._error(
                    f"the observation {raw}", f"its space is {self.observation_space}"
                )
            return index
        value = raw.astype(self._dtype)
        # A sum is finite if all numbers are, and quicker to make than a look at each of them.
        total = np.add.reduce(value, axis=None) if self._floating else 0
        if not math.isfinite(total) and not np.isfinite(value).all():
            which = np.argwhere(~np.isfinite(value))[0].tolist()
            hint = "it must be finite; look at how the environment computes it"
            raise self._error(f"an observation with {value[tuple(which)]} at {which[1:]}", hint)
        return value

    def _rewards(self, reward: Any) -> np.ndarray:
        try:
            value = np.array(reward, np.float32).reshape(self.num_envs)
        except (TypeError, ValueError):
            raise self._error(f"the reward {reward!r}", "a reward is one number") from None
        if not all(map(math.isfinite, value.tolist())):
            raise self._error(f"the reward {reward}", "it must be finite")
        return value

    def _same_spaces(self) -> None:
        prefix = "single_" if self._vector else ""
        for name in ("observation_space", "action_space"):
            now, before = getattr(self.env, prefix + name), getattr(self, name)
            if now is not before and now != before:
                raise self._error(
                    f"another {name.replace('_', ' ')}, {now}", f"it began with {before}"
                )

    def _error(self, got: str, hint: str, who: str = RETURNED) -> BrokenEnvironmentError:
        return BrokenEnvironmentError(
            f"step {self.steps}: {who} {got}; {hint}. What was learnt until then is kept."
        )


def _short(got: Any) -> str:
    """What was got in its first words: how many things, or what one looks like."""
    if isinstance(got, tuple):
        return f"{len(got)} values"
    text = " ".join(repr(got).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _rng(env: Any) -> Any:
    """All that decides the randomness to come, as JSON has it."""
    return env.rng_state if hasattr(env, "rng_state") else env.np_random.bit_generator.state


def _set_rng(env: Any, state: Any) -> None:
    if hasattr(env, "rng_state"):
        env.rng_state = state
    else:
        env.np_random.bit_generator.state = state


def _id(env: GymEnv) -> str | None:
    inner, specs = env.unwrapped, (env.spec,)
    if env.spec is None and isinstance(inner, SyncVectorEnv | AsyncVectorEnv):
        specs = inner.get_attr("spec")
    ids = {None if spec is None else spec.id for spec in specs}
    return ids.pop() if len(ids) == 1 else None


def _stack(env: GymEnv) -> int:
    """How many frames an observation is a stack of; 0 if it is none.

    An environment says so itself, with an attribute `frame_stack` of what is inside all wrappers,
    or it is in Gymnasium's own wrapper, with the first frame repeated.
    """
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper | VectorWrapper):
        if isinstance(inner, FrameStackObservation):
            return inner.stack_size if inner.padding_type == "reset" else 0
        if isinstance(inner, gymnasium.ObservationWrapper | VectorObservationWrapper):
            return 0
        inner = inner.env
    if isinstance(inner, SyncVectorEnv) and not hasattr(inner, "frame_stack"):
        stacks = {_stack(each) for each in inner.envs}
        return stacks.pop() if len(stacks) == 1 else 0
    return int(getattr(inner, "frame_stack", 0))
