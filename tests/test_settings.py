"""Records survive the way through JSON, and bad data are refused with all that is wrong in them."""

import dataclasses
import json
import time
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from randq import config
from randq.agents import DDPG, DQN, Agent
from randq.envs import ENVIRONMENTS, DeepSea, NChain
from randq.exploration import Epsilon, OrnsteinUhlenbeck, ParameterNoise, Thompson
from randq.posteriors import FAMILIES, MNF, Bootstrap, Family, Point
from randq.presets import AGENTS, CONTINUOUS, CONTINUOUS_DOMAINS, DOMAINS, PRESETS, preset
from randq.settings import MAX_ENTRIES, MAX_PROBLEMS, from_json, to_json

RECORDS = [DQN, DDPG, Epsilon, OrnsteinUhlenbeck, ParameterNoise, Thompson]
RECORDS += [*FAMILIES.values(), *ENVIRONMENTS.values()]


@dataclasses.dataclass(frozen=True)
class Holder:
    agent: Agent


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def through_text(record):
    text = json.dumps(to_json(record), allow_nan=False)
    return from_json(type(record), json.loads(text))


def problems(cls, data, where=""):
    with pytest.raises(ValueError, match=r"takes|too much") as caught:
        from_json(cls, data, where)
    assert type(caught.value) is ValueError
    return str(caught.value).splitlines()


def values(hint):
    """Values of a type, most of which are in range."""
    arms = get_args(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(arms)
    if get_origin(hint) is tuple:
        many = arms[-1] is ...
        return st.lists(values(arms[0]), min_size=0 if many else 3, max_size=3).map(tuple)
    if arms:
        return st.one_of(*map(values, arms))
    if hint is Family:
        return st.sampled_from([*FAMILIES.values()]).flatmap(records)
    if dataclasses.is_dataclass(hint):
        return records(hint)
    simple = {type(None): st.none(), bool: st.booleans(), int: st.integers(2, 2**31)}
    return simple[hint] if hint in simple else st.floats(0, 1, exclude_min=True)


@st.composite
def records(draw, cls):
    """Classes and arguments, of which any may be given (strategies must not make records)."""
    hints = get_type_hints(cls)
    required = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
    names = draw(st.sets(st.sampled_from(sorted(hints)))) if hints else set()
    return cls, {name: draw(values(hints[name])) for name in sorted(names | required)}


def made(cls, arguments):
    def value(x):
        return made(*x) if isinstance(x, tuple) and x and isinstance(x[0], type) else x

    return cls(**{name: value(x) for name, x in arguments.items()})


@pytest.mark.parametrize("env", [None, *DOMAINS])
@pytest.mark.parametrize("agent", PRESETS)
def test_presets_survive(agent, env):
    record = preset(agent, env)
    assert through_text(record) == record


@pytest.mark.parametrize("env", [None, *CONTINUOUS_DOMAINS])
@pytest.mark.parametrize("agent", CONTINUOUS)
def test_presets_for_actions_that_are_numbers_survive(agent, env):
    record = preset(agent, env)
    assert through_text(record) == record


def test_a_preset_suits_the_actions_of_its_domain():
    with pytest.raises(ValueError, match=r"agent: got 'mnf-dqn', takes one for .*numbers: ddpg"):
        preset("mnf-dqn", "pendulum")
    with pytest.raises(ValueError, match=r"agent: got 'ddpg', takes one for .*choose from: dqn"):
        preset("ddpg", "cart_pole")
    with pytest.raises(ValueError, match="did you mean 'mnf-ddpg'"):
        preset("mnf-ddgp")


@pytest.mark.parametrize("agent", AGENTS)
def test_where_either_algorithm_may_stand_its_name_stands_with_it(agent):
    data = to_json(Holder(AGENTS[agent]))
    assert data["agent"]["kind"] == ("ddpg" if agent in CONTINUOUS else "dqn")
    assert from_json(Holder, json.loads(json.dumps(data))) == Holder(AGENTS[agent])


@pytest.mark.parametrize("cls", RECORDS)
@given(st.data())
def test_records_survive(cls, data):
    try:
        record = made(*data.draw(records(cls)))
    except ValueError:
        assume(False)
    again = through_text(record)
    assert again == record
    assert repr(again) == repr(record)


def test_plain_data():
    agent = DQN(Bootstrap(heads=3), hidden=(8,), filters=((4, 3, 1),), epsilon=Epsilon())
    data = to_json(agent)
    assert list(data)[:3] == ["posterior", "hidden", "filters"]
    assert list(data["posterior"])[:2] == ["kind", "heads"]
    assert data["posterior"]["kind"] == "bootstrap"
    assert (data["hidden"], data["filters"]) == ([8], [[4, 3, 1]])
    assert data["epsilon"] == {"start": 1.0, "end": 0.1, "decay": 1000, "unit": "episodes"}
    assert (data["update_every"], data["double"]) == (None, True)
    assert "kind" not in to_json(MNF())


def test_what_is_left_out_is_the_default():
    assert from_json(DQN, {"posterior": {"kind": "mnf"}}) == DQN(MNF())
    assert from_json(DQN, {"posterior": {"kind": "point"}, "epsilon": {}}).epsilon == Epsilon()
    assert from_json(Family, {"kind": "mnf", "flow_steps": 3}) == MNF(flow_steps=3)


def test_an_integer_is_a_float_where_that_is_declared():
    agent = from_json(DQN, {"posterior": {"kind": "point"}, "gamma": 1, "max_grad_norm": 5})
    assert (repr(agent.gamma), repr(agent.max_grad_norm)) == ("1.0", "5.0")


@dataclasses.dataclass(frozen=True)
class Needy:
    """What the house's records do not have: a choice without a base, and settings to be given."""

    noise: Epsilon | NChain | None
    count: int
    more: tuple[Epsilon | NChain, ...] = ()
    names: dict = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self):
        if self.count > 5:
            raise ValueError("too much of it")


def test_a_choice_of_records():
    record = Needy(NChain(5), 3, (Epsilon(), NChain()))
    assert to_json(record)["noise"]["kind"] == "NChain"
    assert to_json(record)["more"][0]["kind"] == "Epsilon"
    assert through_text(record) == record
    assert through_text(Needy(None, 0)) == Needy(None, 0)
    assert problems(Needy, {"noise": {"kind": "nchain"}}) == [
        "noise.kind: got 'nchain', takes one of Epsilon, NChain (did you mean 'NChain'?)",
        "count: got nothing, takes an integer (of at most 64 bits)",
    ]
    assert problems(Needy, {"noise": 3, "count": 6}, "x") == [
        'x.noise: got 3, takes an object whose "kind" is one of Epsilon, NChain or null',
        "x: too much of it",
    ]


def test_a_family_without_a_name_is_refused():
    class Mine(Point):
        pass

    with pytest.raises(ValueError, match=r"^posterior: got .*Mine.*, takes one of point, noisy"):
        to_json(DQN(Mine()))


def test_what_is_no_plain_data_is_refused():
    @dataclasses.dataclass
    class Odd:
        x: int

    with pytest.raises(ValueError, match=r"^x: got \{1\}, takes a record, a tuple"):
        to_json(Odd({1}))


def test_a_type_that_settings_cannot_have():
    @dataclasses.dataclass
    class Odd:
        x: complex = 0j

    with pytest.raises(TypeError, match="complex"):
        from_json(Odd, {"x": 1})


def test_all_problems_at_once():
    families = ", ".join(FAMILIES)
    data = {
        "posterior": {"kind": "mnf", "flow_step": 1, "prior_std": -1, "layers": "lin", "noise": 3},
        "hidden": [8, "8", 8.0],
        "filters": [[1, 2], 3],
        "gamma": 1.5,
        "double": 1,
        "learning_rate": "0.1",
        "max_grad_norm": float("inf"),
        "batch_size": 20_000,  # too large for the default capacity, but that is not asked for
        "replay_capacity": -5,
        "target_every": True,
        "target_rate": 10**400,
        "update_every": 1.0,
        "alpha": -1,
        "epsilon": {"start": 2, "decay": 0, "unit": "step"},
        "random_steps": 2**63,
        "los": "huber",
    }
    found = problems(DQN, data, "agent")
    known = ", ".join(f.name for f in dataclasses.fields(DQN))
    of_mnf = ", ".join(f.name for f in dataclasses.fields(MNF))
    integer, number = "an integer (of at most 64 bits)", "a finite number"
    assert sorted(found) == sorted(
        f"agent.{line}"
        for line in [
            f"los: got 'los', takes one of {known} (did you mean 'loss'?)",
            f"posterior.flow_step: got 'flow_step', takes one of {of_mnf}"
            " (did you mean 'flow_steps'?)",
            "posterior.layers: got 'lin', takes one of linear, last, all (did you mean 'linear'?)",
            "posterior.noise: got 3, takes one of batch, example",
            "posterior.prior_std: got -1.0, takes a finite number > 0",
            f"hidden[1]: got '8', takes {integer}",
            f"hidden[2]: got 8.0, takes {integer}",
            "filters[0]: got [1, 2], takes a list of 3 entries",
            "filters[1]: got 3, takes a list of 3 entries",
            "gamma: got 1.5, takes a number from 0 to 1",
            "double: got 1, takes true or false",
            f"learning_rate: got '0.1', takes {number}",
            f"max_grad_norm: got inf, takes {number} or null",
            "replay_capacity: got -5, takes an integer >= 1",
            f"target_every: got True, takes {integer}",
            f"target_rate: got 100000000000000000...0000000000000000000, takes {number}",
            f"update_every: got 1.0, takes {integer} or null",
            "alpha: got -1.0, takes a number from 0 to 1e+09",
            "epsilon.start: got 2.0, takes a number from 0 to 1",
            "epsilon.decay: got 0, takes an integer >= 1",
            "epsilon.unit: got 'step', takes one of steps, episodes (did you mean 'steps'?)",
            f"random_steps: got {2**63}, takes {integer}",
        ]
    )
    assert problems(DQN, {"gamma": 2}) == [
        f'posterior: got nothing, takes an object whose "kind" is one of {families}',
        "gamma: got 2.0, takes a number from 0 to 1",
    ]
    assert problems(DQN, {"posterior": {}}) == [
        f"posterior.kind: got None, takes one of {families}"
    ]
    assert problems(DQN, [3]) == ["settings: got [3], takes an object"]
    assert problems(Epsilon, {"end": {"a": 1}}) == ["end: got an object, takes a finite number"]


@dataclasses.dataclass(frozen=True)
class Ordered:
    low: int = 0
    high: int = 5
    share: float = 0.5
    inner: Epsilon = dataclasses.field(default_factory=Epsilon)

    def __post_init__(self):
        config.whole("decay of inner", self.inner.decay, at_least=1)
        config.require(self.low <= self.high, "low", self.low, f"at most high = {self.high}")
        config.within("share", self.share, 0.0, 1.0)


def test_settings_that_do_not_go_together():
    data = {"posterior": {"kind": "point"}, "replay_capacity": 10}
    assert problems(DQN, data, "a") == ["a.batch_size: got 32, takes at most replay_capacity = 10"]
    assert problems(Ordered, {"high": -1, "share": 7}) == [
        "low: got 0, takes at most high = -1",
        "share: got 7.0, takes a number from 0 to 1",
    ]
    assert problems(DeepSea, {"randomize_actions": False, "mapping_seed": 3, "size": 1}) == [
        "size: got 1, takes an integer >= 2",
        "mapping_seed: got 3, takes None unless randomize_actions is true",
    ]
    # Whether this seed makes sense depends on what the first problem was meant to be.
    assert problems(NChain, {"action_map": "randm", "mapping_seed": 3}) == [
        "action_map: got 'randm', takes one of fixed, random (did you mean 'random'?)"
    ]


def check_any(cls, data):
    """Data make a record or a plain ValueError; any other exception passes."""
    try:
        record = from_json(cls, data)
    except ValueError as error:
        kind, lines = type(error), str(error).splitlines()
        ok = kind is ValueError and all(": got " in line for line in lines)
    else:
        ok = isinstance(record, cls) and through_text(record) == record
    assert ok


@given(JSON)
@settings(max_examples=200)
def test_no_data_raise_anything_else(data):
    for cls in [*RECORDS, Family]:
        check_any(cls, data)


@given(st.data())
@settings(max_examples=200)
def test_no_data_at_a_known_key_raise_anything_else(data):
    good = to_json(PRESETS[data.draw(st.sampled_from(sorted(PRESETS)))])
    place = good if data.draw(st.booleans()) else good["posterior"]
    for key in data.draw(st.sets(st.sampled_from(sorted(place)), min_size=1)):
        place[key] = data.draw(JSON)
    check_any(DQN, good)


def deep():
    data = []
    for _ in range(100_000):
        data = [data]
    return data


@pytest.mark.parametrize(
    "data",
    [
        {"hidden": deep()},
        {"posterior": deep()},
        {"filters": [deep()]},
        {"posterior": {"kind": deep()}},
        {"posterior": {"kind": "mnf" * 1_000_000}},
        {"hidden": [1] * 1_000_000},
        {"hidden": ["1"] * MAX_ENTRIES},
        {"gamma": [[["x" * 1000] * 9] * 9] * 9},
        {"gamma": {str(i): i for i in range(300_000)}},
        {"loss": "x" * 10_000_000},
        {"x" * 10_000_000: 1},
        {f"gama{i}": i for i in range(300_000)},
        {"batch_size": 10**100_000, "gamma": [10**100_000]},
        {"a\nb": 1, "\ud800": 1, "": 1},
    ],
)
def test_hostile_data_are_refused_soon_and_briefly(data):
    start = time.process_time()
    found = problems(DQN, data)
    assert time.process_time() - start < 1
    assert len(found) <= MAX_PROBLEMS + 1
    assert all(len(line) < 1000 for line in found)
    assert all(": got " in line for line in found[:MAX_PROBLEMS])


def test_the_end_of_too_many_problems():
    assert problems(DQN, {"hidden": ["1"] * 1000})[-1] == "and perhaps more"
