"""Atari games in the emulator of ale-py, by two protocols and no others.

An id is a protocol and a game, `atari-paper/Breakout`. Everything that a protocol settles is in its
`Protocol`, so nothing can be set twice; docs/atari.md compares it with what others do.
"""

import contextlib
import difflib
import functools
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from randq.config import one_of, require, whole
from randq.envs.gym.stepper import BrokenEnvironmentError

SIZE, STACK = 84, 4
NOOP = 0
SKIPS = ("frameskip", "frame_skip", "skip")
"""Names under which others take a number of frames to skip."""
TWO_PLAYERS = ("combat", "joust", "maze_craze", "warlords")
"""ROMs that need a second player; to load one ends the whole process."""


class EmulatorError(BrokenEnvironmentError, ValueError):
    """The emulator or a ROM failed: bad input if nothing runs yet, else the end of a run."""


@dataclass(frozen=True)
class Protocol:
    """How a game is made into an environment."""

    name: str
    sticky: float
    """Probability, at each frame, that the action of the frame before is taken again."""
    no_ops: int
    """An episode begins with 1 up to so many frames without action; 0 for none."""
    fire: bool
    """Whether FIRE and the action after it come next, in games whose second action is FIRE."""
    lives: bool
    """Whether `info` has the lives, and says when one was lost."""
    skip: int = 4
    """Frames that an action lasts; the screen is the maximum of the last two."""
    max_frames: int = 108_000
    """After so many an episode is truncated."""

    def __str__(self) -> str:
        frames = f"{self.skip} frames per action, the last two joined by their maximum"
        start = f"1 to {self.no_ops} no-ops first" if self.no_ops else "no no-ops"
        start += ", then FIRE if it is the second action" if self.fire else ", no FIRE on reset"
        sticky = f"sticky actions {self.sticky:g}" if self.sticky else "no sticky actions"
        lives = "a lost life is reported" if self.lives else "no word of lives"
        return (
            f"{self.name}: {frames}, {SIZE}x{SIZE} grey, {STACK} of them, {start},"
            f" {sticky}, minimal action set, {lives}, at most {self.max_frames} frames"
        )


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("atari-paper", sticky=0.0, no_ops=30, fire=True, lives=True),
        Protocol("atari-machado", sticky=0.25, no_ops=0, fire=False, lives=False),
    )
}

GAMES = {
    "paper13": (
        *("Alien", "Amidar", "Asterix", "BankHeist", "BeamRider", "Breakout", "Enduro"),
        *("Frostbite", "Gravitar", "Qbert", "Seaquest", "SpaceInvaders", "Tutankham"),
    ),
    "hard8": ("Alien", "Freeway", "Gravitar", "Hero", "Pitfall", "Qbert", "Solaris", "Venture"),
}
"""Sets of games by their names: the paper's, and those that are hard to explore."""


def games(*names: str) -> tuple[str, ...]:
    """The games of these names, which may be sets in `GAMES`; each game once, in order."""
    found = [game for name in names for game in GAMES.get(name, (name,))]
    for game in found:
        _rom_id(game)
    return tuple(dict.fromkeys(found))


def describe(env_id: str) -> str | None:
    """The protocol of an id in one sentence; None for what is no Atari game."""
    protocol = PROTOCOLS.get(env_id.partition("/")[0])
    return None if protocol is None else str(protocol)


BARE = re.compile(r"ALE/(\w+?)(-v\d+)?|(\w+?)(-ram)?(NoFrameskip|Deterministic)-v\d+")
"""Ids of ale-py, new and old."""


def bare_game(env_id: str) -> str | None:
    """The game that an id of ale-py itself is for; None for other ids."""
    found = BARE.fullmatch(env_id)
    return found and (found[1] or found[3])


def make(env_id: str, **settings: Any) -> "Atari":
    """The environment of an id such as `atari-paper/Breakout`."""
    name, _, game = env_id.partition("/")
    one_of("protocol", name, PROTOCOLS)
    render_mode = settings.pop("render_mode", None)
    for setting, got in settings.items():
        already = f"skips {PROTOCOLS[name].skip} frames already"
        why = already if setting in SKIPS else "settles it"
        require(False, setting, got, f"nothing: the protocol {name} {why}")
    return Atari(PROTOCOLS[name], game, render_mode)


def vector(
    env_id: str, num: int, processes: bool = False, **settings: Any
) -> VectorEnv[Any, Any, Any]:
    """So many of these environments, each with randomness of its own, and if wanted a process.

    Processes cost twice the time of a processor, so they pay with more than two cores only. They
    are spawned, since JAX does not survive a fork: a script that wants them must call this below
    `if __name__ == "__main__":`.
    """
    whole("num", num, at_least=1)
    constructors = [functools.partial(make, env_id, **settings)] * num
    if not processes:
        return SyncVectorEnv(constructors)
    constructors[0]().close()  # so that what is wrong is said here, and once
    return _Processes(constructors, context="spawn")


class _Processes(AsyncVectorEnv):
    """Environments that are out of reach for whoever looks for stacks of frames."""

    frame_stack = STACK


class Atari(gymnasium.Env[np.ndarray, np.int64]):
    """A game, by a protocol. Observations are `(4, 84, 84)` bytes, the newest frame last.

    The reward is the score. `terminated` is the end of the game, never the loss of a life, which is
    `info["life_lost"]`. All randomness comes from `np_random`, and each episode begins in the same
    state of the emulator, whatever was played before: so an episode is the same again if the
    generator and the actions are.
    """

    frame_stack = STACK
    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012, as Gymnasium has it

    def __init__(self, protocol: Protocol, game: str, render_mode: str | None = None) -> None:
        require(render_mode in (None, "rgb_array"), "render_mode", render_mode, "'rgb_array'")
        self.protocol, self.game, self.render_mode = protocol, game, render_mode
        self._ale = _emulator(game, protocol)
        kwargs = {"env_id": self._id, "render_mode": render_mode}
        self.spec = EnvSpec(self._id, f"{__name__}:make", kwargs=kwargs)
        # A reset of the emulator does not clear all of it: the one after this state does the same
        # each time.
        self._loaded = self._ale.cloneState(include_rng=True)
        actions = self._ale.getMinimalActionSet()
        self.actions = tuple(action.name for action in actions)
        """Names of the actions."""
        self._codes = [action.value for action in actions]
        self.observation_space = gymnasium.spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(actions))
        height, width = self._ale.getScreenDims()
        self._before, self._screen = (np.zeros((height, width), np.uint8) for _ in range(2))
        self._resize = AreaResize(height, width)
        self._frames = np.zeros((STACK, SIZE, SIZE), np.uint8)
        self._held, self._lives = NOOP, 0
        self._begun: dict[str, Any] | None = None
        self._taken = bytearray()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._begun, self._taken = dict(self.np_random.bit_generator.state), bytearray()
        protocol, ale = self.protocol, self._ale
        no_ops = int(self.np_random.integers(1, protocol.no_ops + 1)) if protocol.no_ops else 0
        with self._stopping():
            self._restart()
            for _ in range(no_ops):
                ale.act(NOOP)
                if ale.game_over():
                    self._restart()
            ale.getScreenGrayscale(self._screen)
            if protocol.fire and self.actions[1] == "FIRE":
                for action in (1, 2):
                    self._act(action)
                    if ale.game_over():
                        self._restart()
                        ale.getScreenGrayscale(self._screen)
            self._lives = ale.lives()
        self._frames[:] = self._resize(self._screen)
        return self._frames.copy(), self._info(lost=False)

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        require(action in self.action_space, "action", action, str(self.action_space))
        if self._begun is None:
            raise gymnasium.error.ResetNeeded("reset the environment before its first step")
        self._taken.append(int(action))
        with self._stopping():
            reward = self._act(int(action))
            before, self._lives = self._lives, self._ale.lives()
            terminated = self._ale.game_over(with_truncation=False)
            truncated = not terminated and self._ale.game_truncated()
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._resize(self._screen)
        info = self._info(lost=self._lives < before)
        return self._frames.copy(), float(reward), terminated, truncated, info

    def _act(self, action: int) -> int:
        """The score of an action while it lasts; the screen is then that of its end."""
        ale, skip, code, reward = self._ale, self.protocol.skip, self._codes[action], 0
        held = self.np_random.random(skip) < self.protocol.sticky if self.protocol.sticky else None
        for frame in range(skip):
            if held is None or not held[frame]:
                self._held = code
            reward += ale.act(self._held)
            if ale.game_over():
                break
            if frame == skip - 2:
                ale.getScreenGrayscale(self._before)
        ale.getScreenGrayscale(self._screen)
        if frame == skip - 1:  # after an early end there is but one screen
            np.maximum(self._before, self._screen, out=self._screen)
        return reward

    def _restart(self) -> None:
        self._ale.restoreState(self._loaded)
        self._ale.reset_game()
        self._held = NOOP

    def _info(self, lost: bool) -> dict[str, Any]:
        return {"lives": self._lives, "life_lost": lost} if self.protocol.lives else {}

    def render(self) -> np.ndarray | None:
        return self._ale.getScreenRGB() if self.render_mode else None

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise EmulatorError(f"the emulator of {self.game} failed ({error})") from error

    # Where it is

    def save(self) -> np.ndarray:
        """Where the game is, as plain bytes: how the episode began, and what was done since.

        The emulator can write down a state of its own, but that is not all of it: some games go on
        differently, or look different, in another process that reads it (docs/atari.md).
        """
        require(
            self._begun is not None, "save", "an environment that was not reset", "one that was"
        )
        seen = zlib.crc32(self._frames.tobytes())
        header = {"env": self._id, "rng": self._begun, "seen": seen, "taken": len(self._taken)}
        body = json.dumps(header).encode() + b"\n" + bytes(self._taken)
        return np.frombuffer(body + zlib.crc32(body).to_bytes(4, "little"), np.uint8).copy()

    def restore(self, saved: np.ndarray) -> np.ndarray:
        """Play on to where `save` was called, and return the observation there."""
        content = saved.tobytes()
        body, checksum = content[:-4], content[-4:]
        intact = zlib.crc32(body).to_bytes(4, "little") == checksum
        require(intact, "saved", f"{len(content)} bytes", "what save() returned, undamaged")
        first, _, taken = body.partition(b"\n")
        try:
            header = json.loads(first)
            env, seen, count = header["env"], header["seen"], header["taken"]
            np.random.PCG64().state = header["rng"]
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"saved: got no place in an episode ({error})") from error
        require(env == self._id, "saved", f"a place in {env}", f"one in {self._id}")
        playable = count == len(taken) and max(taken, default=0) < len(self._codes)
        require(playable, "saved", f"{len(taken)} actions", f"{count} actions of {self.game}")
        self.np_random.bit_generator.state = header["rng"]
        observation, _ = self.reset()
        for action in taken:
            observation, *_ = self.step(action)
        same = zlib.crc32(observation.tobytes()) == seen
        require(same, "saved", "an episode that now leads elsewhere", "one of this emulator")
        return observation

    @property
    def _id(self) -> str:
        return f"{self.protocol.name}/{self.game}"


class AreaResize:
    """Means over areas, to 84x84: OpenCV's INTER_AREA to the bit, in its own order of sums.

    A pixel is a weighted sum of at most four columns, and then of at most four rows, in float32.
    """

    def __init__(self, height: int, width: int) -> None:
        self._columns, self._rows = _shares(width), _shares(height)

    def __call__(self, screen: np.ndarray) -> np.ndarray:
        # Rows are quicker to gather than columns.
        by_column = screen.T.astype(np.float32, order="C")
        by_row = np.ascontiguousarray(_weighted(by_column, *self._columns).T)
        return np.rint(_weighted(by_row, *self._rows)).astype(np.uint8)


def _weighted(image: np.ndarray, which: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = image[which[0]]
    total *= weights[0]
    for index, weight in zip(which[1:], weights[1:], strict=True):
        term = image[index]
        term *= weight
        total += term
    return total


def _shares(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which old pixels each new one is made of, and how much of each: arrays `(terms, 84)`."""
    scale = size / SIZE
    shares: list[list[tuple[int, float]]] = []
    for i in range(SIZE):
        low, high = i * scale, min((i + 1) * scale, size)
        old = range(math.floor(low), math.ceil(high))
        parts = [(j, min(high, j + 1) - max(low, j)) for j in old]
        # What is hardly touched does not count, as in OpenCV.
        shares.append([(j, part / scale) for j, part in parts if part > 1e-3])
    terms = max(map(len, shares))
    padded = [row + [(0, 0.0)] * (terms - len(row)) for row in shares]
    which = np.array([[j for j, _ in row] for row in padded]).T
    weights = np.array([[part for _, part in row] for row in padded], np.float32).T
    return which, weights[:, :, None]


def _emulator(game: str, protocol: Protocol) -> Any:
    ale_py = _ale_py()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # before it greets
    ale = ale_py.ALEInterface()
    ale.setFloat(
        "repeat_action_probability", 0.0
    )  # sticky actions are ours, to come from np_random
    ale.setInt("max_num_frames_per_episode", protocol.max_frames)
    rom = _rom_id(game)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints where it looks
            path = ale_py.roms.get_rom_path(rom)
        # One that is damaged is refused above: the emulator would end the process.
        ale.loadROM(path)
    except (OSError, RuntimeError, TypeError) as error:
        sentence = " ".join(str(error).split())
        raise EmulatorError(
            f"env: got {game!r}, whose ROM cannot be loaded ({sentence})"
        ) from error
    return ale


def _rom_id(game: str) -> str:
    """Name of the ROM of a game: `space_invaders` of SpaceInvaders."""
    known = {
        rom.title().replace("_", ""): rom
        for rom in sorted(_ale_py().roms.get_all_rom_ids())
        if rom not in TWO_PLAYERS
    }
    if game not in known:
        lower = {name.lower(): name for name in known}
        near = difflib.get_close_matches(game.lower().replace("_", ""), lower, n=3)
        meant = " or ".join(lower[name] for name in near)
        hint = f" (did you mean {meant}?)" if near else ", such as " + ", ".join(GAMES["paper13"])
        require(False, "game", game, f"one of the {len(known)} games of ale-py{hint}")
    return known[game]


def _ale_py() -> Any:
    try:
        import ale_py
        import ale_py.roms
    except ImportError:
        takes = 'an environment that is installed (pip install "randq[atari]")'
        require(False, "env", "Atari", takes)
    return ale_py
