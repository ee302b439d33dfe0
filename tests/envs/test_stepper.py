"""Actions that are numbers, on their way to Gymnasium's environments."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import SyncVectorEnv

from randq.envs.gym.stepper import BrokenEnvironmentError, Stepper, spaces_of

SEEN = Box(-1, 1, (2,))


class Told(gymnasium.Env):
    """Keeps what it is told, and refuses what its space does not contain."""

    observation_space = SEEN

    def __init__(self, action_space):
        self.action_space, self.told = action_space, []

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action.dtype == self.action_space.dtype
        assert action in self.action_space
        self.told.append(action.copy())
        return np.zeros(2, np.float32), 0.0, False, False, {}


# In single precision 0.1 is more than 0.1, and -0.3 less than -0.3.
ODD = Box(np.array([[-0.3, 0.0, 1.0]]), np.array([[0.1, 5.0, 1.5]]), dtype=np.float64)


def test_bounds_become_plain_numbers():
    spaces = spaces_of(SEEN, ODD)
    assert (spaces.num_actions, spaces.continuous) == (3, True)
    assert spaces.action_low == (-0.3, 0.0, 1.0)
    assert spaces.action_high == (0.1, 5.0, 1.5)
    assert not spaces_of(SEEN, Discrete(3)).continuous
    assert spaces.action_shape == (1, 3)
    assert spaces_of(SEEN, Box(-1, 1, (2,))).action_shape is None


def test_spaces_in_a_few_words():
    said = {
        spaces_of(SEEN, ODD): "shape (2,), float32 from -1 to 1; actions: 3 numbers from -0.3 to 5",
        spaces_of(Discrete(4), Discrete(3)): "one of 4; actions: one of 3",
        spaces_of(Box(-np.inf, 1, (2,)), Discrete(3)): "shape (2,), float32; actions: one of 3",
    }
    for spaces, words in said.items():
        assert str(spaces) == f"observations: {words}"


@pytest.mark.parametrize("end", ["low", "high"])
def test_one_environment_is_told_actions_in_its_own_shape_type_and_bounds(end):
    env = Told(ODD)
    stepper = Stepper(env)
    stepper.reset(0)
    numbers = np.float32(getattr(stepper.spaces, f"action_{end}"))
    stepper.step(numbers[None])
    assert env.told[0].shape == (1, 3)
    np.testing.assert_array_equal(env.told[0], getattr(ODD, end))
    stepper.step(np.float32([[0.05, 2.5, 1.25]]))
    np.testing.assert_allclose(env.told[1], [[0.05, 2.5, 1.25]], rtol=1e-6)


@pytest.mark.parametrize("action", [[0.11, 1, 1.2], [0, -0.1, 1.2], [0, 1, np.nan]])
def test_numbers_beyond_the_bounds_never_reach_the_environment(action):
    env = Told(ODD)
    stepper = Stepper(env)
    stepper.reset(0)
    with pytest.raises(BrokenEnvironmentError, match=r"step 1: the action is .* takes Box"):
        stepper.step(np.float32([action]))
    assert env.told == []


@pytest.mark.parametrize("action", [-1, 3])
def test_no_more_do_actions_that_are_not_there(action):
    stepper = Stepper(gymnasium.make("MountainCar-v0"))
    stepper.reset(0)
    with pytest.raises(BrokenEnvironmentError, match=r"the action is .* takes Discrete\(3\)"):
        stepper.step(np.array([action]))


def test_each_of_several_environments_is_told_its_own_action():
    envs = SyncVectorEnv([functools.partial(Told, ODD) for _ in range(3)])
    stepper = Stepper(envs)
    stepper.reset(0)
    actions = np.float32([[0.0, 1.0, 1.1], [0.1, 2.0, 1.2], [-0.3, 3.0, 1.3]])
    stepper.step(actions)
    for env, action in zip(envs.envs, actions, strict=True):
        np.testing.assert_allclose(env.told[0], action[None], rtol=1e-6)


INF = np.float32(np.inf)


@pytest.mark.parametrize(
    ("space", "takes"),
    [
        (Box(-INF, INF, (2,)), "finite bounds"),
        (Box(np.float32([0, -INF]), np.float32([1, 1])), "finite bounds"),
        # Finite, but as good as none.
        (Box(-3e38, 3e38, (2,), np.float32), "finite bounds"),
        (Box(0.0, 0.0, (1,), np.float32), "finite bounds"),
        (Box(0, 255, (2,), np.uint8), "a Box of floating-point numbers"),
        (MultiDiscrete([2, 2]), "a Discrete space, or a Box"),
        (Dict({}), "a Discrete space, or a Box"),
    ],
    ids=str,
)
def test_other_actions_are_refused_in_one_sentence(space, takes):
    with pytest.raises(ValueError, match=rf"action space: got .*takes .*{takes}") as caught:
        spaces_of(SEEN, space)
    assert str(caught.value).count("\n") == 0
