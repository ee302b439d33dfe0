"""The Python API: what a user does, and what can go wrong in an environment of one's own."""

import functools
import os
import signal
import subprocess
import sys
import threading

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import randq
from randq import storage
from randq.api import Policy
from randq.config import override
from randq.envs.gym import atari
from randq.envs.gym.stepper import BrokenEnvironmentError
from randq.loops.host import DivergedError
from randq.posteriors import MNF
from randq.presets import PRESETS, preset
from randq.settings import to_json
from randq.storage import StorageError

TINY = {
    "hidden": (8,),
    "batch_size": 8,
    "replay_capacity": 100,
    "learning_starts": 10,
    "target_every": 20,
}


class Corridor(gymnasium.Env):
    """Walk right five times for a reward; hooks let a test break it."""

    observation_space = gymnasium.spaces.Box(0, 5, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **hooks):
        self.hooks, self.steps = hooks, 0

    def _hook(self, name, value):
        hook = self.hooks.get(name)
        return value if hook is None or self.steps < 7 else hook(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps, self.time = self.steps + 1, self.time + 1
        if "act" in self.hooks:
            self.hooks["act"](self)
        self.place = max(0, self.place + 2 * int(action) - 1)
        observation = self._hook("observation", np.array([self.place], np.float32))
        reward = self._hook("reward", float(self.place == 5))
        return observation, reward, self.place == 5, self.time == 20, {}


def make(name="mnf-dqn", env=None, **settings):
    return randq.make(name, env or Corridor(), **{**TINY, **settings})


@functools.cache
def learnt(name):
    return make(name, seed=1).learn(60, progress_bar=False)


@pytest.mark.parametrize("name", PRESETS)
def test_every_agent_learns_predicts_and_says_how_sure_it_is(name):
    agent = learnt(name)
    assert agent.steps == 60
    assert sum(played.length for played in agent.episodes) <= 60
    one, batch = np.array([2.0]), np.array([[0.0], [2.0], [4.0]])
    action, state = agent.predict(one)
    assert action in agent._session.stepper.action_space
    assert state is None
    assert agent.predict(batch, deterministic=False)[0].shape == (3,)
    assert agent.q_values(one).shape == (2,)
    np.testing.assert_allclose(agent.q_values(batch)[1], agent.q_values(one), atol=1e-6)
    samples = agent.q_samples(batch, 20)
    assert samples.shape == (20, 3, 2)
    mean, std, disagreement = agent.uncertainty(batch, 20)
    np.testing.assert_allclose(std, samples.std(axis=0))
    np.testing.assert_allclose(mean, samples.mean(axis=0))
    best = samples.argmax(axis=-1)
    share = [1 - max(np.mean(best[:, i] == a) for a in (0, 1)) for i in range(3)]
    np.testing.assert_allclose(disagreement, share)
    assert (std.max() < 1e-6) == (name in ("dqn", "ddqn"))
    assert agent.uncertainty(one).std.shape == (2,)


def test_predicts_with_the_mean_or_with_the_draw_that_it_holds():
    agent = learnt("mnf-dqn")
    xs = np.linspace(0, 5, 30)[:, None]
    np.testing.assert_array_equal(agent.predict(xs)[0], agent.q_values(xs).argmax(axis=1))
    draw = jax.tree.map(lambda x: x[0], agent._now.agent.draw)
    held = jax.vmap(draw)(xs.astype(np.float32)).argmax(axis=1)
    assert not bool(agent._now.agent.stale[0])
    np.testing.assert_array_equal(agent.predict(xs, deterministic=False)[0], held)


@pytest.mark.parametrize("name", ["mnf-dqn", "ddqn"])
def test_a_policy_is_one_draw_and_stays_as_it_is(name):
    agent = make(name).learn(30, progress_bar=False)
    xs = np.linspace(0, 5, 9)[:, None]
    policy, other = agent.sample(jax.random.key(3)), agent.sample(4)
    assert isinstance(policy, Policy)
    before = policy.q_values(xs)
    np.testing.assert_array_equal(agent.sample(3).q_values(xs), before)
    if name == "mnf-dqn":
        assert not np.array_equal(other.q_values(xs), before)
    agent.learn(30, progress_bar=False)
    np.testing.assert_array_equal(policy.q_values(xs), before)
    np.testing.assert_array_equal(policy(xs), before.argmax(axis=1))
    assert randq.evaluate(policy, Corridor(), 2).lengths


def test_a_policy_of_numbers_stays_as_it_is_too():
    """Its actor and how observations are normalised are those of the moment when it was made."""
    small = {"hidden": (8,), "batch_size": 8, "learning_starts": 8, "replay_capacity": 100}
    faster = {"actor_learning_rate": 0.05, "normalise_observations": True}
    agent = randq.make("mnf-ddpg", "Pendulum-v1", **small, **faster).learn(30, progress_bar=False)
    x, action = np.array([0.6, 0.8, 1.0]), np.array([0.5])
    policy = agent.sample(3)
    before = policy(x), policy.q_values(x), policy.q_values(x, action)
    np.testing.assert_array_equal(before[0], agent.predict(x)[0])
    agent.learn(60, progress_bar=False)
    assert not np.array_equal(agent.predict(x)[0], before[0])
    after = policy(x), policy.q_values(x), policy.q_values(x, action)
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(now, was)


class Lengths(gymnasium.Env):
    """Episodes of one step or of a hundred, with equal chances; a reward for each step."""

    observation_space = gymnasium.spaces.Box(0, 5, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 100]))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_evaluation_in_a_vector_is_not_of_the_short_episodes():
    agent = make("ddqn", Lengths())
    for episodes in (20, 30):
        lengths = []
        for seed in range(0, 200, 20):
            found = randq.evaluate(agent, SyncVectorEnv([Lengths] * 20), episodes, seed)
            assert len(found.lengths) == episodes
            lengths += found.lengths
        # Half of them are long; the first ones to end would be nearly all short.
        assert 0.35 < np.mean(np.array(lengths) == 100) < 0.65


@pytest.mark.parametrize(
    "env", [lambda: "Pendulum-v1", lambda: "Acrobot-v1", lambda: Discretised(Corridor())]
)
def test_evaluation_in_other_spaces_is_refused(env):
    agent = make("ddqn")
    with pytest.raises(ValueError, match=r"env: got .* takes the spaces that the agent was made"):
        randq.evaluate(agent, env(), 1)
    with pytest.raises(ValueError, match=r"env: got .* takes the spaces that the agent was made"):
        randq.evaluate(agent.sample(0), env(), 1)


class Grid(gymnasium.Env):
    """Takes a matrix of numbers."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-2.0, 5.0, (2, 2))

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert action in self.action_space
        return np.zeros(3, np.float32), 0.0, False, False, {}


def test_actions_have_the_shape_of_the_space():
    small = {"hidden": (8,), "batch_size": 8, "learning_starts": 8, "replay_capacity": 100}
    agent = randq.make("mnf-ddpg", Grid(), **small).learn(20, progress_bar=False)
    x, xs = np.zeros(3), np.zeros((5, 3))
    for acts in (
        lambda x: agent.predict(x)[0],
        lambda x: agent.predict(x, deterministic=False)[0],
        agent.sample(0),
    ):
        assert acts(x) in Grid.action_space
        assert acts(xs).shape == (5, 2, 2)
    action = agent.predict(x)[0]
    np.testing.assert_allclose(agent.q_values(x, action), agent.q_values(x), rtol=1e-5)
    assert agent.q_values(xs, np.stack([action] * 5)).shape == (5, 1)


@pytest.mark.parametrize("key", [-1, 2**70, True])
def test_what_is_no_key_is_refused(key):
    agent = make("mnf-dqn")
    with pytest.raises(ValueError, match=r"key: got .* takes a whole number"):
        agent.sample(key)
    with pytest.raises(ValueError, match=r"key: got .* takes a whole number"):
        agent.q_samples(np.zeros(1), key=key)


def test_numbers_of_numpy_are_numbers():
    agent = make("mnf-dqn", seed=np.int64(3))
    same = make("mnf-dqn", seed=3)
    x = np.zeros(1)
    np.testing.assert_array_equal(agent.q_values(x), same.q_values(x))
    a, b = agent.sample(np.int32(3)), agent.sample(jax.random.key(3))
    np.testing.assert_array_equal(a.q_values(x), b.q_values(x))


@pytest.mark.parametrize("seen", [[[1.0], [2.0, 3.0]], (np.zeros(1), {}), "abc", [1e300]])
def test_what_is_no_observation_is_refused(seen):
    with pytest.raises(ValueError, match="observation: got"):
        make("ddqn").predict(seen)


class OldFashioned(Corridor):
    """As environments were before Gymnasium."""

    def __init__(self, old):
        super().__init__()
        self.old = old

    def reset(self, **settings):
        seen = super().reset(**settings)
        return seen[0] if self.old == "reset" else seen

    def step(self, action):
        seen, reward, terminated, truncated, info = super().step(action)
        if self.old == "step":
            return seen, reward, terminated or truncated, info
        return [[1.0], [2.0, 3.0]], reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("reset", r"step 0: .* from reset; it must be \(observation, info\)"),
        ("step", r"step 1: the environment returned 4 values from step; it must be"),
        ("ragged", "step 1: the environment returned an observation that is no array"),
    ],
)
def test_an_old_interface_is_named(old, says):
    with pytest.raises(BrokenEnvironmentError, match=says):
        make("ddqn", OldFashioned(old)).learn(20, progress_bar=False)


def test_the_same_seed_learns_the_same_and_asking_changes_nothing():
    runs = []
    for asks in (False, True):
        agent = make(seed=5)
        for _ in range(3):
            agent.learn(20, progress_bar=False)
            if asks:
                agent.uncertainty(np.zeros(1))
                agent.predict(np.zeros(1), deterministic=False)
                randq.evaluate(agent, Corridor(), 1)
        runs.append(agent)
    assert runs[0].episodes == runs[1].episodes
    np.testing.assert_array_equal(*(agent.q_values(np.ones(1)) for agent in runs))
    assert make(seed=6).learn(60, progress_bar=False).episodes != runs[0].episodes


def test_a_callback_sees_every_step_and_can_stop():
    seen = []

    def callback(agent, progress):
        seen.append((progress.steps, agent.steps, float(progress.arrived.reward[0])))
        return progress.steps < 25

    agent = make().learn(60, progress_bar=False, callback=callback)
    assert [steps for steps, _, _ in seen] == list(range(1, 26))
    assert agent.steps == 25


def test_shows_a_progress_bar(capsys):
    make("ddqn").learn(20)
    assert "20" in capsys.readouterr().out


def test_learns_to_walk_the_corridor():
    """Epsilon-greedy needs luck for five steps in a row at the start; any agent can do it here."""
    agent = randq.make(
        "mnf-dqn", Corridor(), seed=0, hidden=(16,), learning_starts=50, target_every=50
    )
    agent.learn(2500, progress_bar=False)
    evaluation = randq.evaluate(agent, Corridor(), 3)
    assert evaluation.returns == (1.0, 1.0, 1.0)
    assert evaluation.lengths == (5, 5, 5)
    assert evaluation.mean == 1.0
    assert evaluation.std == 0.0


def test_a_vector_of_environments():
    env = SyncVectorEnv([Corridor] * 3)
    agent = make(env=env).learn(60, progress_bar=False)
    assert 60 <= agent.steps < 63
    assert randq.evaluate(agent, SyncVectorEnv([Corridor] * 2), 3).lengths


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "mountain_car", "randq/DeepSea-v0", "FrozenLake-v1"]
)
def test_environments_by_name(name):
    assert randq.make("ddqn", name, **TINY).learn(12, progress_bar=False).steps == 12


@pytest.mark.parametrize(
    ("env", "domain"),
    [
        ("atari-paper/Pong", "atari"),
        (lambda: atari.vector("atari-machado/Pong", 2), "atari"),
        (lambda: gymnasium.make_vec("randq/MountainCar-v0", 2), "mountain_car"),
        (lambda: SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), "cart_pole"),
        (lambda: SyncVectorEnv([Corridor] * 2), "vector"),
        ("randq/NChain-v0", "nchain"),
        ("nchain", "nchain"),
    ],
)
def test_settings_suit_a_known_environment_however_it_comes(env, domain):
    agent = randq.make("mnf-dqn", env if isinstance(env, str) else env(), replay_capacity=100)
    assert agent.settings == override(preset("mnf-dqn", domain), {"replay_capacity": 100})


class Discretised(gymnasium.ActionWrapper):
    """Three torques to choose from."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(3)

    def action(self, action):
        return np.array([2.0 * (action - 1)], np.float32)


def test_settings_suit_the_actions_that_a_wrapper_makes():
    env = Discretised(gymnasium.make("Pendulum-v1"))
    agent = randq.make("dqn", env)
    assert agent.settings == preset("dqn", "vector")
    with pytest.raises(ValueError, match="agent: got 'ddpg'"):
        randq.make("ddpg", env)


def test_minatar_by_name():
    agent = randq.make("mnf-dqn", "MinAtar/Breakout-v1", **TINY, filters=((4, 3, 1),))
    agent.learn(30, progress_bar=False)
    assert agent.spaces.dtype == "bool"
    assert agent._now.agent.posterior.network.convolutions
    assert agent.predict(np.zeros((10, 10, 4), bool))[0] in range(3)


def test_settings_by_dotted_name_or_as_records():
    assert make(**{"posterior.flow_steps": 2}).settings.posterior == MNF(flow_steps=2)
    assert make(posterior=MNF(flow_steps=3)).settings.posterior.flow_steps == 3


# What can go wrong


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: randq.make("mnf-dpn", Corridor()), "agent: got 'mnf-dpn'.*did you mean 'mnf-dqn'"),
        (lambda: randq.make("dqn", "CartPol-v1"), "env: got 'CartPol-v1'.*did you mean 'CartPole"),
        (lambda: randq.make("dqn", Corridor(), gama=1), "got 'gama'.*did you mean 'gamma'"),
        (lambda: randq.make("dqn", Corridor(), gamma=2), "gamma: got 2"),
        (lambda: randq.make("dqn", "Pendulum-v1"), "agent: got 'dqn', .*that are numbers: ddpg"),
        (lambda: randq.make("dqn", "Blackjack-v1"), "observation space: got Tuple.*takes a Box"),
        (lambda: make(replay_capacity=10**12), "replay_capacity: got .* GB of memory"),
        (lambda: make().learn(0), "total_timesteps: got 0"),
        (lambda: make().predict(np.zeros(3)), r"observation: got \(3,\), takes shape \(1,\)"),
        (lambda: make().predict(np.array([np.nan])), "observation: got .*nan.*takes finite"),
        (lambda: make().predict(["a"]), "observation: got"),
        (lambda: randq.evaluate(make(), Corridor(), 0), "episodes: got 0"),
    ],
)
def test_refuses_in_one_sentence(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'dqn', 3", "env: got 3, takes a Gymnasium environment"),
        ("'dqn', 'CartPole-v1', double='no'", "double: got 'no', takes true or false"),
        ("'dqn', 'CartPole-v1', hidden=64", "hidden: got 64, takes a list"),
    ],
)
def test_refuses_values_of_a_wrong_type(arguments, says):
    """In another process, because in this one every annotation is checked before."""
    code = f"import randq; randq.make({arguments})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].startswith(f"ValueError: {says}")


@pytest.mark.parametrize(
    ("hooks", "says"),
    [
        ({"reward": lambda env: np.nan}, "step 7: the environment returned the reward nan"),
        ({"reward": lambda env: float("inf")}, "the reward inf"),
        ({"reward": lambda env: "much"}, "the reward 'much'; a reward is one number"),
        ({"reward": lambda env: np.ones(2)}, "a reward is one number"),
        ({"observation": lambda env: np.zeros(2)}, r"an observation of shape \(2,\); its space"),
        ({"observation": lambda env: np.full(1, np.nan)}, r"an observation with nan at \[0\]"),
        ({"observation": lambda env: np.array(["x"])}, "an observation of type"),
    ],
)
def test_an_environment_that_breaks_its_contract_stops_learning_and_nothing_is_lost(hooks, says):
    agent = make("dqn", Corridor(**hooks), learning_starts=2)
    with pytest.raises(BrokenEnvironmentError, match=says):
        agent.learn(60, progress_bar=False)
    assert agent.steps == 6
    assert np.isfinite(agent.q_values(np.zeros(1))).all()
    agent._session.stepper.env.hooks = {}
    assert agent.learn(20, progress_bar=False).steps == 26


def test_a_space_that_changes_is_noticed():
    def change(env):
        if env.steps == 30:
            env.observation_space = gymnasium.spaces.Box(0, 5, (2,))

    agent = make("dqn", Corridor(act=change))
    with pytest.raises(BrokenEnvironmentError, match=r"another observation space, .*it began with"):
        agent.learn(100, progress_bar=False)


def test_an_error_of_the_environment_is_passed_on_and_nothing_is_lost():
    def fail(env):
        if env.steps == 9:
            raise OSError("simulator lost")

    agent = make("dqn", Corridor(act=fail))
    with pytest.raises(OSError, match="simulator lost"):
        agent.learn(60, progress_bar=False)
    assert agent.learn(20, progress_bar=False).steps == 28


@pytest.mark.parametrize("envs", [1, 2])
def test_values_that_explode_stop_learning_and_the_last_good_ones_are_kept(envs):
    corridors = [Corridor] * envs
    env = SyncVectorEnv(corridors) if envs > 1 else Corridor()
    agent = make("dqn", env, learning_rate=1e6, max_grad_norm=None, loss="squared")
    with pytest.raises(DivergedError, match=r"step \d+: learning diverged.*lower learning_rate"):
        agent.learn(500, progress_bar=False)
    assert np.isfinite(agent.q_values(np.zeros(1))).all()


def test_ctrl_c_stops_after_a_step_and_nothing_is_lost():
    agent, before = make("dqn"), signal.getsignal(signal.SIGINT)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        agent.learn(10**9, progress_bar=False)
    steps = agent.steps
    assert agent.learn(5, progress_bar=False).steps == steps + 5
    assert signal.getsignal(signal.SIGINT) is before


# Saved agents


@pytest.mark.parametrize("name", PRESETS)
def test_a_saved_agent_is_the_same(name, tmp_path):
    agent = learnt(name)
    agent.save(tmp_path / "agent.randq")
    loaded = randq.load(tmp_path / "agent.randq")
    xs = np.linspace(0, 5, 9)[:, None]
    assert loaded.settings == agent.settings
    assert loaded.steps == 60
    np.testing.assert_array_equal(loaded.q_values(xs), agent.q_values(xs))
    np.testing.assert_array_equal(loaded.q_samples(xs, 5), agent.q_samples(xs, 5))
    for deterministic in (True, False):
        ours, theirs = (a.predict(xs, deterministic)[0] for a in (agent, loaded))
        np.testing.assert_array_equal(ours, theirs)


def test_a_loaded_agent_learns_on_also_in_a_vector(tmp_path):
    learnt("mnf-dqn").save(tmp_path / "agent")
    with pytest.raises(ValueError, match="env: got None, takes an agent that has one"):
        randq.load(tmp_path / "agent").learn(10)
    one = randq.load(tmp_path / "agent", Corridor()).learn(10, progress_bar=False)
    two = randq.load(str(tmp_path / "agent"), SyncVectorEnv([Corridor] * 2))
    assert one.steps == 70
    assert two.learn(10, progress_bar=False).steps == 70
    with pytest.raises(ValueError, match=r"env: got .* the spaces that the agent was made for"):
        randq.load(tmp_path / "agent", "CartPole-v1")


def test_an_agent_of_another_version_that_does_not_fit_is_said_to_be_one(tmp_path, monkeypatch):
    agent = make("ddqn").learn(5, progress_bar=False)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "VERSION", "0.0.7")
        settings = to_json(agent._host)
        settings["agent"]["forgotten"] = 1
        storage.save(tmp_path / "old", agent._now, settings)
    with pytest.raises(StorageError, match=r"forgotten.*made by randq '0\.0\.7', this is"):
        randq.load(tmp_path / "old")


def test_refuses_what_is_not_an_agent(tmp_path):
    path = tmp_path / "agent"
    learnt("ddqn").save(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:50], whole[:-1], whole[:-9] + b"x" + whole[-8:], b"pickle" * 99):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match="agent"):
            randq.load(path)
    with pytest.raises(StorageError, match="missing"):
        randq.load(tmp_path / "missing")
    storage.save(tmp_path / "rows", np.zeros(3), {"start": 0, "end": 3})
    with pytest.raises(StorageError, match=r"not a saved agent, but a file with start, end$"):
        randq.load(tmp_path / "rows")


class Shifted(gymnasium.Env):
    """Observations and actions that are counted from elsewhere."""

    observation_space = gymnasium.spaces.Discrete(3, start=10)
    action_space = gymnasium.spaces.Discrete(2, start=-4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return 10, {}

    def step(self, action):
        assert self.action_space.contains(int(action))
        self.time += 1
        return 10 + self.time % 3, float(action == -3), False, self.time == 6, {}


def test_spaces_that_do_not_begin_at_zero():
    agent = make("dqn", Shifted()).learn(80, progress_bar=False)
    assert agent.predict(11)[0] in (-4, -3)
    assert agent.predict(np.array([10, 12]))[0].shape == (2,)
    assert agent.q_values(12).shape == (2,)
    assert 0 <= randq.evaluate(agent, Shifted(), 2).mean <= 6
    with pytest.raises(ValueError, match="observation: got 9, takes one of 3 numbers"):
        agent.predict(9)
