"""Atari games: frame for frame with Gymnasium's preprocessing, and what only the protocols say."""

import dataclasses
import json
import sys
import warnings

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from randq import cli
from randq.config import override
from randq.envs.gym import atari, find
from randq.envs.gym.atari import GAMES, PROTOCOLS, AreaResize, Atari, EmulatorError, describe, games
from randq.envs.gym.stepper import BrokenEnvironmentError, Stepper
from randq.presets import AGENTS, preset
from randq.runs.execute import begin, carry_out
from randq.runs.plan import GymPlan
from randq.storage import StorageError

gymnasium.register_envs(ale_py)
PAPER, MACHADO = PROTOCOLS["atari-paper"], PROTOCOLS["atari-machado"]
BARE = dataclasses.replace(PAPER, no_ops=0, fire=False)


def gymnasiums(game):
    bare = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(bare, noop_max=0), 4)


def random_actions(env, count, seed=0):
    return np.random.RandomState(seed).randint(env.action_space.n, size=count).tolist()


def play(env, actions):
    """All that an episode or more says."""
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append((observation.tobytes(), reward, terminated, truncated, info))
        if terminated or truncated:
            observation, info = env.reset()
            seen.append((observation.tobytes(), info))
    return seen


class Recorder:
    """The emulator, with a list of the actions that it got."""

    def __init__(self, ale):
        self.ale, self.acts = ale, []

    def act(self, code):
        self.acts.append(code)
        return self.ale.act(code)

    def __getattr__(self, name):
        return getattr(self.ale, name)


# As Gymnasium has it


@pytest.mark.parametrize("height", [210, 214, 220, 230, 250])  # all that the games have
def test_the_resize_is_opencvs_to_the_bit(height):
    rng, resize = np.random.RandomState(height), AreaResize(height, 160)
    for cell in (1, 2, 5):
        coarse = rng.randint(256, size=(height // cell + 1, 160 // cell + 1)).astype(np.uint8)
        screen = coarse.repeat(cell, 0).repeat(cell, 1)[:height, :160]
        theirs = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(resize(screen), theirs)


@pytest.mark.parametrize("game", ["Breakout", "BeamRider", "Qbert", "SpaceInvaders", "AirRaid"])
def test_equals_gymnasiums_preprocessing_frame_for_frame(game):
    ours, theirs = Atari(BARE, game), gymnasiums(game)
    assert ours.action_space == theirs.action_space
    observation, _ = ours.reset(seed=0)
    np.testing.assert_array_equal(observation, theirs.reset(seed=0)[0])
    for action in random_actions(ours, 250):
        observation, reward, *ends, info = ours.step(action)
        expected, score, *their_ends, their_info = theirs.step(action)
        assert (reward, ends, info["lives"]) == (score, their_ends, their_info["lives"])
        if any(ends):
            # Their last screen is partly an old one; and without a seed their reset depends on
            # what was played before.
            observation, _ = ours.reset()
            expected, _ = theirs.reset(seed=0)
        np.testing.assert_array_equal(observation, expected)


@pytest.mark.parametrize("env_id", ["atari-paper/Breakout", "atari-machado/Amidar"])
def test_passes_gymnasiums_checker_without_a_warning(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(find(env_id), skip_render_check=True)  # that needs a registered id


# The protocols


def test_up_to_so_many_no_ops_and_at_least_one():
    env = Atari(dataclasses.replace(PAPER, no_ops=3), "Asterix")
    env.reset(seed=0)
    drawn = [env.reset() and env._ale.getEpisodeFrameNumber() for _ in range(20)]
    assert set(drawn) == {1, 2, 3}
    assert PAPER.no_ops == 30
    assert MACHADO.no_ops == 0


def test_fire_and_the_next_action_begin_an_episode_where_fire_is_the_second_action():
    env, theirs = Atari(dataclasses.replace(BARE, fire=True), "Breakout"), gymnasiums("Breakout")
    observation, _ = env.reset(seed=0)
    theirs.reset(seed=0)
    theirs.step(1)
    expected = theirs.step(2)[0]
    for frame in observation:
        np.testing.assert_array_equal(frame, expected[-1])
    without = Atari(dataclasses.replace(BARE, fire=True), "Tutankham")
    assert "FIRE" not in without.actions
    without.reset(seed=0)
    assert without._ale.getEpisodeFrameNumber() == 0


def test_a_lost_life_is_reported_and_the_game_goes_on():
    env = find("atari-paper/Breakout")
    _, info = env.reset(seed=0)
    lives, lost, terminated = info["lives"], 0, False
    assert (lives, info["life_lost"]) == (5, False)
    while not terminated:
        _, _, terminated, truncated, info = env.step(1)
        assert info["life_lost"] == (info["lives"] < lives)
        assert not truncated
        assert terminated == (info["lives"] == 0)
        lost, lives = lost + info["life_lost"], info["lives"]
    assert lost == 5


def test_lives_that_the_game_counts_late_are_not_lost():
    env = Atari(BARE, "Amidar")
    _, info = env.reset(seed=0)
    assert info["lives"] == 0
    infos = [env.step(0)[-1] for _ in range(5)]
    assert infos[-1]["lives"] > 0
    assert not any(info["life_lost"] for info in infos)


def test_only_machado_is_sticky_and_it_says_nothing_of_lives():
    repeated = {}
    for protocol in (MACHADO, BARE):
        env = Atari(protocol, "Breakout")
        _, info = env.reset(seed=0)
        env._ale = Recorder(env._ale)
        for i in range(300):
            *_, info = env.step(2 + i % 2)
        frames = np.reshape(env._ale.acts, (300, 4))
        asked = np.array([env._codes[2 + i % 2] for i in range(300)])
        repeated[protocol.name] = (frames != asked[:, None]).mean(axis=0)
        assert info.keys() == (set() if protocol is MACHADO else {"lives", "life_lost"})
        # What was done can be done again by an emulator that is not sticky.
        plain = Atari(BARE, "Breakout")
        plain.reset(seed=0)
        for code in env._ale.acts:
            plain._ale.act(code)
        np.testing.assert_array_equal(plain._ale.getScreenRGB(), env._ale.getScreenRGB())
    np.testing.assert_array_equal(repeated["atari-paper"], 0)
    # One in four keeps the old action for a frame, one in 16 for two, and so on.
    np.testing.assert_allclose(repeated["atari-machado"], 0.25 ** np.arange(1, 5), atol=0.06)


def test_an_episode_that_is_too_long_is_truncated():
    env = Atari(dataclasses.replace(BARE, max_frames=80), "Freeway")
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(20)]
    assert ends == [(False, False)] * 19 + [(False, True)]
    assert PAPER.max_frames == MACHADO.max_frames == 108_000


def test_the_protocol_is_printed_and_stored(tmp_path, monkeypatch, capsys):
    plan = GymPlan("dqn", AGENTS["dqn"], "atari-machado/Breakout")
    group = begin(plan, tmp_path, "randq train")
    (directory,) = group.directories
    sentence = directory.read_json("run.json")["protocol"]
    assert sentence == describe("atari-machado/Breakout") == str(MACHADO)
    assert "sticky actions 0.25" in sentence
    assert describe("CartPole-v1") is None

    def stop(*_):
        raise StorageError("disk: is full")

    monkeypatch.setattr(cli, "carry_out", stop)
    with pytest.raises(StorageError):
        cli._carry_out(group, cli.Console())
    directory.close()
    assert sentence in capsys.readouterr().err


# The same again


@pytest.mark.parametrize("env_id", ["atari-machado/Breakout", "atari-paper/Frostbite"])
def test_seeds_decide_everything_whatever_was_played_before(env_id):
    first, second = find(env_id), find(env_id)
    second.reset(seed=5)
    play(second, random_actions(second, 70, seed=1))
    actions, seen = random_actions(first, 120), []
    for env in (first, second):
        observation, _ = env.reset(seed=3)
        seen.append([observation.tobytes(), *play(env, actions)])
    assert seen[0] == seen[1]
    first.reset(seed=4)
    assert play(first, actions) != seen[0][1:]


@pytest.mark.parametrize("env_id", ["atari-machado/Breakout", "atari-paper/Qbert"])
def test_a_saved_place_goes_on_to_the_bit(env_id):
    env, other = find(env_id), find(env_id)
    env.reset(seed=0)
    env.reset()
    play(env, random_actions(env, 150, seed=1))
    observation = env._frames.copy()
    saved = env.save()
    assert saved.dtype == np.uint8
    other.reset(seed=9)
    play(other, random_actions(other, 30, seed=2))
    np.testing.assert_array_equal(other.restore(saved), observation)
    assert np.array_equal(other.save(), saved)
    actions = random_actions(env, 200, seed=3)
    assert play(other, actions) == play(env, actions)


def test_the_host_loop_can_bring_it_back():
    steppers = [Stepper(find("atari-machado/BeamRider")) for _ in range(2)]
    steppers[0].reset(0)
    for action in random_actions(steppers[0].env, 40):
        seen = steppers[0].step(np.array([action], np.int32)).observation
    assert steppers[1].return_to(steppers[0].position, seen)


def damaged(saved):
    saved[len(saved) // 2] ^= 1
    return saved


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (damaged, "undamaged"),
        (lambda saved: saved[:-1], "undamaged"),
        (lambda saved: saved[:0], "undamaged"),
        (lambda saved: rewritten(saved, b"Pong", b"Qbert"), "a place in atari-paper/Qbert"),
        (lambda saved: rewritten(saved, b"\n\x01", b"\n\x40"), "2 actions of Pong"),
        (lambda saved: rewritten(saved, b'"taken": 2', b'"taken": 3'), "3 actions of Pong"),
        (lambda saved: rewritten(saved, b"PCG64", b"Philox"), "no place"),
        (lambda saved: rewritten(saved, b"{", b"["), "no place"),
        (lambda saved: rewritten(saved, b'"seen": ', b'"seen": 1'), "leads elsewhere"),
    ],
)
def test_a_place_that_is_none_is_refused(spoil, says):
    env = find("atari-paper/Pong")
    env.reset(seed=0)
    env.step(1)
    env.step(2)
    with pytest.raises(ValueError, match=rf"saved: .*{says}"):
        env.restore(spoil(env.save()))


def rewritten(saved, old, new):
    """With a checksum that is right: somebody meant it."""
    body = saved.tobytes()[:-4]
    assert old in body
    body = body.replace(old, new)
    return np.frombuffer(body + atari.zlib.crc32(body).to_bytes(4, "little"), np.uint8)


@pytest.mark.parametrize("processes", [False, True])
def test_a_vector_steps_as_its_environments_would(processes):
    envs = atari.vector("atari-machado/Breakout", 2, processes)
    try:
        stepper = Stepper(envs)
        assert (stepper.env_id, stepper.spaces.stack) == ("atari-machado/Breakout", 4)
        together, _ = envs.reset(seed=[0, 1])
        alone = [find("atari-machado/Breakout") for _ in range(2)]
        singles = [env.reset(seed=seed)[0] for seed, env in enumerate(alone)]
        for action in random_actions(alone[0], 40):
            np.testing.assert_array_equal(together, singles)
            together, *_ = envs.step(np.array([action] * 2))
            singles = [env.step(action)[0] for env in alone]
        assert not np.array_equal(together[0], together[1])  # each has its own draw
    finally:
        envs.close()


def test_gymnasium_makes_it_again_from_its_specification():
    env = find("atari-machado/Pong", render_mode="rgb_array")
    again = gymnasium.make(env.spec).unwrapped
    assert isinstance(again, Atari)
    assert (again.protocol, again.game, again.render_mode) == (
        env.protocol,
        env.game,
        env.render_mode,
    )


# What is refused


def test_sets_of_games():
    assert len(GAMES["paper13"]) == 13
    assert len(GAMES["hard8"]) == 8
    both = games("paper13", "hard8", "Pong")
    assert len(both) == len(set(both)) == 13 + 5 + 1
    assert games("Breakout", "Pong", "Breakout") == ("Breakout", "Pong")


@pytest.mark.parametrize(
    ("env_id", "settings", "says"),
    [
        ("atari-paper/spaceinvaders", {}, "got 'spaceinvaders', .*did you mean SpaceInvaders"),
        ("atari-paper/Brekout", {}, "did you mean Breakout"),
        ("atari-paper/space_invaders", {}, "did you mean SpaceInvaders"),
        ("atari-paper/xyzzy", {}, "one of the 104 games of ale-py, such as Alien, Amidar"),
        ("atari-paper/Combat", {}, "game: got 'Combat'"),  # for two players
        ("atari-paper", {}, "game: got ''"),
        ("atari-papier/Breakout", {}, "protocol: got 'atari-papier'.*did you mean 'atari-paper'"),
        ("atari-paper/Breakout", {"frameskip": 4}, "frameskip: got 4, .*skips 4 frames already"),
        ("atari-paper/Breakout", {"frame_skip": 1}, "skips 4 frames already"),
        ("atari-paper/Breakout", {"repeat_action_probability": 0.1}, "atari-paper settles it"),
        ("atari-paper/Breakout", {"render_mode": "human"}, "render_mode: got 'human'"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(env_id, settings, says):
    with pytest.raises(ValueError, match=rf"\A[^\n]*{says}[^\n]*\Z"):
        find(env_id, **settings)


def test_gymnasiums_preprocessing_does_not_skip_a_second_time():
    with pytest.raises(ValueError, match="frame-skip"):
        AtariPreprocessing(find("atari-paper/Pong"))


def test_without_ale_py_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ValueError, match=r'pip install "randq\[atari\]"'):
        find("atari-paper/Breakout")


@pytest.mark.parametrize(
    "env_id",
    [
        "ALE/Pong-v5",
        "ALE/Pong",
        "PongNoFrameskip-v4",
        "PongDeterministic-v0",
        "Pong-ramNoFrameskip-v4",
    ],
)
def test_ale_pys_own_ids_are_refused_as_they_leave_open_how_to_play(env_id):
    with pytest.raises(ValueError, match="takes atari-paper/Pong or atari-machado/Pong, which"):
        find(env_id, frameskip=3)


def test_a_game_that_somebody_made_is_taken_as_it_is():
    gymnasium.register_envs(ale_py)
    assert Stepper(gymnasium.make("ALE/Pong-v5")).spaces.observation_shape == (210, 160, 3)


def test_a_bad_rom_is_refused_before_the_emulator_sees_it(monkeypatch, tmp_path, capsys):
    (tmp_path / "pong.bin").write_bytes(b"no game")
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    for game in ("Pong", "Breakout"):  # damaged, and missing
        with pytest.raises(EmulatorError, match=f"got '{game}', whose ROM cannot be loaded"):
            find(f"atari-paper/{game}")
    assert capsys.readouterr().out == ""


def test_an_error_of_the_emulator_stops_the_run_as_a_broken_environment_does():
    class Fails(Recorder):
        def act(self, code):
            raise RuntimeError("illegal instruction")

    env = find("atari-paper/Pong")
    env.reset(seed=0)
    env._ale = Fails(env._ale)
    with pytest.raises(BrokenEnvironmentError, match=r"emulator of Pong failed \(illegal"):
        env.step(0)


def test_a_step_before_the_first_reset_and_a_wrong_action_are_refused():
    env = find("atari-paper/Pong")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: got 6, takes Discrete\(6\)"):
        env.step(6)
    assert env.render() is None
    shown = find("atari-paper/Pong", render_mode="rgb_array")
    shown.reset(seed=0)
    assert shown.render().shape == (210, 160, 3)


def test_a_run_that_the_emulator_stopped_goes_on_from_its_checkpoint(tmp_path, monkeypatch, capsys):
    small = {"hidden": (8,), "filters": ((2, 8, 8),), "replay_capacity": 500}
    agent = override(preset("ddqn", "atari"), {**small, "learning_starts": 50, "random_steps": 20})
    often = {"steps": 200, "evaluate_every": 200, "log_every": 50, "checkpoint_every": 0.0}

    def run(folder):
        plan = GymPlan("ddqn", agent, "atari-paper/Pong", evaluation_episodes=1, **often)
        return begin(plan, folder, "a test")

    whole = carry_out(run(tmp_path / "whole"), lambda at: None, print)
    step, steps = Atari.step, []

    def fails(env, action):
        steps.append(action)
        if len(steps) == 120:
            raise EmulatorError("the emulator of Pong failed (illegal instruction)")
        return step(env, action)

    with monkeypatch.context() as patch:
        patch.setattr(Atari, "step", fails)
        with pytest.raises(EmulatorError, match="illegal instruction"):
            carry_out(run(tmp_path / "stopped"), lambda at: None, print)
    stopped = tmp_path / "stopped"
    assert max(stopped.rglob("checkpoints/*.randq")).name == "000000000119.randq"
    cli.main(["resume", str(stopped), "--json"])
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["seeds"]
    assert row["fingerprint"] == whole[0]["fingerprint"]
