"""The host loop with stacks of frames: what it stores, what it learns, and how it goes on."""

import functools
import itertools
import json
import re
import signal
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TransformObservation

from randq.envs.gym.stepper import BrokenEnvironmentError, Stepper
from randq.loops.host import Host
from randq.loops.session import Session
from randq.networks import Conv2d, Linear
from randq.packing import message
from randq.posteriors import Bootstrap
from randq.posteriors.layerwise import LayerPosterior
from randq.presets import DOMAINS, PRESETS, domain, preset
from randq.replay import Frames, Transitions
from randq.runs.directory import RunDirectory
from randq.runs.gym import GymRun
from randq.runs.interrupts import InterruptedRunError
from randq.runs.plan import GymPlan
from randq.settings import to_json
from randq.types import Spaces

SMALL = {
    "hidden": (8,),
    "batch_size": 8,
    "learning_starts": 20,
    "target_every": 25,
    "update_every": 2,
    "replay_capacity": 400,
}


class Screen(gymnasium.Env):
    """Noise to look at; a life is lost every third step, and an episode lasts `length` steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (5, 5), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length=7, truncates=False):
        self.length, self.truncates = length, truncates

    def _frame(self):
        return self.np_random.integers(0, 256, (5, 5), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._frame(), {}

    def step(self, action):
        self.time += 1
        over, info = self.time == self.length, {"life_lost": self.time % 3 == 0}
        reward = 10.0 * (int(action) - 1)
        return self._frame(), reward, over and not self.truncates, over and self.truncates, info


def stacked(frames=4, **settings):
    return FrameStackObservation(Screen(**settings), frames)


class Saving(Screen):
    """Stacks its frames itself, and has a part that no second play of an episode brings back."""

    frame_stack = 3
    observation_space = gymnasium.spaces.Box(0, 255, (3, 5, 5), np.uint8)

    def _frame(self):
        self.luck = (getattr(self, "luck", 7) * 31 + 5) % 251
        return np.full((5, 5), self.luck, np.uint8)

    def reset(self, *, seed=None, options=None):
        frame, info = super().reset(seed=seed)
        self.seen = np.stack([frame] * 3)
        return self.seen.copy(), info

    def step(self, action):
        frame, *rest = super().step(action)
        self.seen = np.concatenate([self.seen[1:], frame[None]])
        return (self.seen.copy(), *rest)

    def save(self):
        return np.concatenate([np.uint8([self.luck, self.time]), self.seen.ravel()])

    def restore(self, saved):
        self.luck, self.time = int(saved[0]), int(saved[1])
        self.seen = saved[2:].reshape(3, 5, 5).copy()
        return self.seen.copy()


gymnasium.register("Saving-v0", Saving)
gymnasium.register(
    "Screen-v0", Screen, additional_wrappers=(FrameStackObservation.wrapper_spec(stack_size=4),)
)


def play(agent, env, steps, seed=3):
    session = Session(Host(agent, Stepper(env).spaces), Stepper(env), seed)
    actions, returns = [], []
    for _ in range(steps):
        session.advance()
        actions.append(session.actions)
        returns.append(session.arrived.reward[0])
    return session, np.array(actions), np.array(returns)


CHANGES = {
    "bbqn": {},
    "boot-dqn": {"posterior": Bootstrap(heads=3, mask_probability=0.5), "redraw_every": 5},
}


@pytest.mark.parametrize("name", CHANGES)
def test_learns_what_it_learns_from_whole_transitions(name):
    """Within an episode both replays draw the same transitions, so all that follows is the same."""
    agent = replace(PRESETS[name], **SMALL, **CHANGES[name], reward_sign=True)
    frames, mine, _ = play(agent, stacked(length=1000), 120)
    whole, other, _ = play(agent, NoStackScreen(), 120)
    assert isinstance(frames.host.replay, Frames)
    assert isinstance(whole.host.replay, Transitions)
    np.testing.assert_array_equal(mine, other)
    assert len(np.unique(mine)) > 1
    a, b = (x.host.memory(x.state).agent for x in (frames, whole))
    assert int(a.updates) > 40
    for x, y in zip(jax.tree.leaves(a.posterior), jax.tree.leaves(b.posterior), strict=True):
        np.testing.assert_array_equal(x, y)


class NoStackScreen(gymnasium.Env):
    """Stacked frames from an environment that does not say so."""

    def __init__(self):
        self.inner = stacked(length=1000)
        self.observation_space = self.inner.observation_space
        self.action_space = self.inner.action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)

    def step(self, action):
        return self.inner.step(action)


@pytest.mark.parametrize("truncates", [False, True])
def test_a_lost_life_is_terminal_in_the_replay_and_not_for_the_episode(truncates):
    agent = replace(PRESETS["ddqn"], **SMALL, reward_sign=True)
    session = Session(
        Host(agent, Stepper(stacked()).spaces), Stepper(stacked(truncates=truncates)), 0
    )
    ended, scores, total = [], [], 0.0
    for _ in range(21):
        _, found = session.advance()
        total += float(session.arrived.reward[0])
        if found:
            ended += found
            scores.append(total)
            total = 0.0
    # The score of the game is that of its rewards as they come.
    assert [each.length for each in ended] == [7, 7, 7]
    assert [each.episode_return for each in ended] == scores
    assert any(abs(score) >= 10 for score in scores)
    state = session.host.unpacked(session.state)
    items, written = state.replay.items, int(state.replay.written[0])
    acted = items.acted[:written]
    assert acted.tolist() == ([True] * 7 + [False]) * 3
    lives = [False, False, True, False, False, True, not truncates]
    assert items.terminated[:written][acted].tolist() == lives * 3
    assert set(np.unique(items.reward[:written][acted])) <= {-1.0, 0.0, 1.0}
    assert float(state.largest_reward) == 1.0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_environment_of_a_vector_has_frames_of_its_own(mode):
    lengths = (3, 4, 6)
    makers = [functools.partial(stacked, 3, length=n) for n in lengths]
    stepper = Stepper(SyncVectorEnv(makers, autoreset_mode=mode))
    assert stepper.spaces.stack == 3
    host = Host(replace(PRESETS["ddqn"], **SMALL), stepper.spaces, 3)
    first = stepper.reset(0)
    held, seen = set(), first.observation
    state, actions = host.step(host.init(0), first)
    for _ in range(30):
        told = np.asarray(actions)
        arrived = stepper.step(told)
        for i in np.flatnonzero(arrived.taken):
            stops = bool(arrived.terminated[i] | arrived.stops[i])
            held.add((seen[i].tobytes(), int(told[i]), arrived.final[i].tobytes(), stops))
        seen = arrived.observation
        state, actions = host.step(state, arrived)
    now = host.unpacked(state)
    drawn = jax.device_get(
        jax.jit(host.replay.sample, static_argnums=2)(
            jax.tree.map(np.array, now.replay), jax.random.key(0), 2000
        )
    )
    found = {
        (x.tobytes(), int(a), y.tobytes(), bool(stops))
        for x, a, y, stops in zip(
            drawn.observation, drawn.action, drawn.next_observation, drawn.terminated, strict=True
        )
    }
    assert found == held
    assert any(stops for *_, stops in held)


def test_n_step_targets_are_learnt_from():
    agent = replace(PRESETS["mnf-dqn"], **SMALL, n_step=3)
    session, _, _ = play(agent, stacked(), 60)
    assert session.host.replay.n_step == 3
    assert np.isfinite(float(session.host.vitals(session.state).metrics.loss))
    plain, _, _ = play(replace(agent, n_step=1), stacked(), 60)
    a, b = (float(x.host.vitals(x.state).metrics.loss) for x in (session, plain))
    assert a != b
    with pytest.raises(ValueError, match="n_step: got 3, takes 1 where"):
        Host(agent, Spaces((4,), 2)).init(0)


# --- which environments have stacks ---------------------------------------------------------------


def test_stacks_are_found_out():
    assert Stepper(stacked()).spaces.stack == 4
    assert Stepper(gymnasium.wrappers.TimeLimit(stacked(), 5)).spaces.stack == 4
    assert Stepper(Saving()).spaces.stack == 3
    assert Stepper(gymnasium.make("Saving-v0")).spaces.stack == 3
    assert Stepper(Screen()).spaces.stack == 0
    assert Stepper(FrameStackObservation(Screen(), 4, padding_type="zero")).spaces.stack == 0
    changed = TransformObservation(stacked(), lambda x: x, stacked().observation_space)
    assert Stepper(changed).spaces.stack == 0


class Liar(Saving):
    def __init__(self, when):
        super().__init__()
        self.when = when

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        seen[0] += self.when == "reset"
        return seen, info

    def step(self, action):
        seen, *rest = super().step(action)
        seen[0] += self.when == "step"
        return (seen, *rest)


@pytest.mark.parametrize(
    ("when", "what"), [("reset", "a first stack of different"), ("step", "older frames that are")]
)
def test_stacks_that_are_none_are_refused(when, what):
    stepper = Stepper(Liar(when))
    with pytest.raises(BrokenEnvironmentError, match=what):
        stepper.step(np.zeros(stepper.reset(0).reward.shape, np.int32))


# --- checkpoints ----------------------------------------------------------------------------------


def go(plan, folder, stop=None):
    """Run a plan, or go on with it; a signal comes at the step given."""
    directory, left = RunDirectory(folder), iter(range(stop or 10**9, 0, -1))
    directory.lock()
    if not directory.exists:
        directory.create(0, to_json(plan), "a test")
    asked = lambda: None if next(left) > 1 else signal.SIGTERM  # noqa: E731
    warnings = []
    try:
        return GymRun(plan, 0, directory, asked, warnings.append).run(), warnings
    finally:
        directory.close()


@pytest.mark.parametrize("env", ["Screen-v0", "Saving-v0"])
def test_a_run_with_frames_goes_on_exactly(tmp_path, env, monkeypatch):
    # Several stretches and chunks.
    monkeypatch.setattr("randq.replay.base.STRETCH", 1000)
    monkeypatch.setattr("randq.loops.host.CHUNK", 16)
    agent = replace(PRESETS["ddqn"], **{**SMALL, "replay_capacity": 60}, n_step=2)
    plan = GymPlan("ddqn", agent, env, steps=220, log_every=50, evaluation_episodes=1)
    plan = replace(plan, checkpoint_every=1e6).resolved
    whole, _ = go(plan, tmp_path / "whole")
    for stop in (60, 73):  # within an episode, and after the ring has wrapped around
        with pytest.raises(InterruptedRunError):
            go(plan, tmp_path / "broken", stop)
    broken, warnings = go(plan, tmp_path / "broken")
    assert warnings == []
    assert broken["fingerprint"] == whole["fingerprint"]
    assert broken["inexact"] == []
    names = ["evaluations.jsonl", "episodes.csv", "agent.randq"]
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()
    # A segment holds what was new and can still be sampled, nothing twice.
    segments = sorted(path.stem for path in (tmp_path / "broken" / "replay").iterdir())
    ends = [tuple(map(int, name.split("-"))) for name in segments]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert json.loads((tmp_path / "broken" / "result.json").read_text())["steps"] == 220


def test_what_an_environment_saves_is_used_only_if_no_wrapper_has_a_part_of_it():
    plain = Stepper(gymnasium.make("Saving-v0"))
    plain.reset(0)
    assert plain.position.begun is None
    limited = Stepper(gymnasium.make("Saving-v0", max_episode_steps=50))
    limited.reset(0)
    assert limited.position.begun == {"seed": 0, "rng": None}


# --- the settings of the paper --------------------------------------------------------------------

GAME = Spaces((4, 84, 84), 6, dtype="uint8", stack=4)


def test_games_have_the_settings_of_the_paper():
    assert domain("atari-paper/Breakout", GAME) == "atari"
    assert "atari" in DOMAINS
    agent = preset("mnf-dqn", "atari")
    flows = agent.posterior.flow_steps, agent.posterior.auxiliary_steps, agent.posterior.flow_hidden
    assert flows == (2, 2, 50)
    assert (agent.learning_starts, agent.random_steps) == (50_000, 50_000)
    assert Host(agent, GAME).replay.size < 7.3e9
    assert preset("ddqn", "atari").epsilon.decay == 1_000_000
    assert preset("boot-dqn", "atari").posterior.heads == 10


def test_who_is_double_in_games():
    """MNF-DQN's target is the paper's Algorithm 1, and the paper's baseline is DDQN."""
    double = {name for name in PRESETS if preset(name, "atari").double}
    assert double == {"ddqn", "boot-dqn", "boot-dqn-prior", "bdqn"}


@pytest.mark.parametrize("name", ["mnf-dqn", "bbqn", "noisy-dqn"])
def test_convolutions_are_plain_and_the_layers_after_them_random(name):
    agent = preset(name, "atari")
    state = jax.eval_shape(functools.partial(agent.init, GAME), jax.random.key(0))
    network = state.posterior.network
    assert [type(layer) for layer in network.convolutions] == [Conv2d] * 3
    assert [isinstance(layer, LayerPosterior) for layer in (*network.hidden, network.head)] == [
        True,
        True,
    ]


def test_heads_share_the_convolutions():
    state = jax.eval_shape(
        functools.partial(preset("boot-dqn", "atari").init, GAME), jax.random.key(0)
    )
    heads = state.posterior.heads
    assert heads.shared.convolutions[0].weight.shape == (8, 8, 4, 32)
    assert isinstance(heads.own.hidden[0], Linear)
    assert heads.own.hidden[0].weight.shape == (10, 3136, 512)


@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_no_program_copies_the_replay_or_learns_in_a_branch(envs, whole):
    """Neither shows in a result, and each makes steps from pixels many times slower."""
    spaces = Spaces((4, 60, 60), 3, dtype="uint8", stack=0 if whole else 4)
    host = Host(replace(preset("ddqn", "atari"), **SMALL), spaces, envs)
    state, no = host.init(0), np.zeros(envs, bool)
    seen = np.zeros((envs, 4, 60, 60), np.uint8)
    arrived = message((seen, seen, np.zeros(envs, np.float32), no, no, ~no, no))
    if envs == 1:
        kinds = ((True, False), (False, False), (False, True))
        programs = [host._step.lower(state, arrived, learns=x, keeps=y) for x, y in kinds]
    else:
        programs = [
            host._learn_more.lower(state, np.int32(0)),
            host._take_in.lower(state, arrived),
        ]
    texts = [program.compile().as_text() for program in programs]
    largest = max(jax.tree.leaves(host.replay.shapes.items), key=lambda x: x.size)
    shape = ",".join(map(str, largest.shape))
    for text in texts:
        assert f"u8[{shape}]" in text
        assert not re.search(rf"u8\[{shape}\]\S* copy\(", text)
    gradients = re.findall(r"convolution\(.*dim_labels=([a-z0-9_]+->[a-z0-9]+)", texts[0])
    assert len(gradients) >= 9
    assert set(gradients) == {"b01f_01io->b01f"}  # the form that has a fast implementation
