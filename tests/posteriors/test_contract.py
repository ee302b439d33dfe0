"""What every family must do. The cases are generated from `FAMILIES`; a new family is found there.

All that is asked of one case is computed in one jitted function (compiling is what takes time), and
each test then looks at its own part.
"""

import dataclasses
import functools
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from new_posterior import MCDropout

from randq.networks import MLP, ConvNet
from randq.posteriors import FAMILIES, Frozen, family, learnt, trainable

SUBJECTS = {**FAMILIES, "mc_dropout": MCDropout}  # the example is held to the same contract

# All layers of the MLP have one shape, so that noise which they share would show.
NETWORKS = {
    "mlp": lambda key, dtype: MLP.create(3, [3], 3, key=key, dtype=dtype),
    "conv": lambda key, dtype: ConvNet.create((5, 5, 2), [(4, 3, 2)], [6], 3, key=key, dtype=dtype),
}
INPUT = {"mlp": (3,), "conv": (5, 5, 2)}

# Beside the default settings over both networks.
INTERESTING = {
    "noisy": [("conv", {"layers": "all"}), ("mlp", {"layers": "last"})],
    "mean_field": [
        ("conv", {"layers": "last"}),
        ("conv", {"layers": "all", "prior_std": 0.5}),
        ("mlp", {"noise": "example"}),
        ("conv", {"noise": "example", "layers": "all"}),
    ],
    "mnf": [
        ("mlp", {"flow_steps": 0, "auxiliary_steps": 0}),
        ("mlp", {"flow_steps": 2, "auxiliary_steps": 0, "layers": "last"}),
        ("conv", {"flow_steps": 0, "auxiliary_steps": 2, "layers": "all"}),
        ("mlp", {"noise": "example"}),
        ("conv", {"noise": "example", "layers": "all"}),
    ],
    "bootstrap": [
        ("mlp", {"heads": 3, "shared": "nothing", "prior_scale": 2.0}),
        ("conv", {"heads": 3, "shared": "convolutions", "prior_scale": 2.0}),
        ("conv", {"heads": 3, "shared": "torso", "prior_scale": 2.0}),
        ("mlp", {"heads": 1, "mask_probability": 1.0}),
    ],
    "mc_dropout": [("conv", {"layers": "all"})],
}

# The families that are not random in the plainest sense, and how.
ONE_DRAW = {"point"}  # the only draw is the network itself
FEW_DRAWS = {"bootstrap", "mc_dropout"}  # draws are discrete: two keys may well agree
SAME_MEMBERS = {"point", "bootstrap", "bayes_linear"}  # a loss trains the same ones with every key
WITH_COST = {"mean_field", "mnf"}
CLOSED_FORM = {"bayes_linear"}

BATCH, DRAWS = 4, 12
ORDER = np.array([2, 0, 3, 1])


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    network: str
    settings: tuple[tuple[str, object], ...] = ()

    def __str__(self):
        return "-".join([self.name, self.network, *(f"{k}={v}" for k, v in self.settings)])

    def setting(self, name):
        return getattr(SUBJECTS[self.name](**dict(self.settings)), name, None)

    def build(self, key, dtype=jnp.float32):
        kind = SUBJECTS[self.name](**dict(self.settings))
        return kind.build(lambda k: NETWORKS[self.network](k, dtype), key)

    def data(self, dtype=jnp.float32):
        rng = np.random.default_rng(0)
        xs = rng.normal(size=(BATCH, *INPUT[self.network]))
        return (
            jnp.asarray(xs, dtype),
            jnp.asarray([0, 1, 1, 0], jnp.int32),
            jnp.asarray([1.0, -1.0, 2.0, 0.5], dtype),
        )


CASES = [Case(name, network) for name in SUBJECTS for network in NETWORKS]
CASES += [
    Case(name, network, tuple(settings.items()))
    for name, entries in INTERESTING.items()
    for network, settings in entries
]


def examine(case, posterior, dtype=jnp.float32):
    """Everything that the tests look at, as a function that can be traced."""
    xs, outputs, targets = case.data(dtype)
    keys = jax.random.split(jax.random.key(1), DRAWS)
    twice = jnp.concatenate([keys[:1], keys])
    conditioned = posterior.condition(xs, outputs, targets)

    def draw(key):
        sample = conditioned.sample(key)
        return {"weights": sample.network, "values": jax.vmap(sample)(xs), "cost": sample.cost}

    def members(posterior, key):
        found = posterior.members(key)
        straight, shuffled = jax.vmap(found)(jnp.stack([xs, xs[ORDER]]))
        values = {"values": straight, "shuffled": shuffled, "cost": found.cost}
        return jnp.mean(straight**2) + 0.01 * found.cost, values

    def loss(posterior):
        losses, values = jax.vmap(lambda key: members(posterior, key))(twice)
        return jnp.mean(losses), values

    gradient, values = jax.grad(loss, has_aux=True)(conditioned)
    return {
        "posterior": conditioned,
        "draws": jax.vmap(draw)(twice),
        "members": values,
        "gradient": gradient,
        "noise_free": members(conditioned, None)[1],
        "mean": jax.vmap(conditioned.mean())(xs),
        "evaluator": jax.vmap(conditioned.evaluator())(xs),
        "masks": jax.vmap(lambda key: posterior.masks(key, 50))(twice),
    }


def look(case):
    """The posteriors of two seeds in one tree, the first of them, and what it does."""
    # Compiling takes nearly all the time of these tests: leave out what makes programs fast.
    jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    built = jit(jax.vmap(lambda seed: case.build(jax.random.key(seed))))(jnp.arange(2))
    fresh = jax.tree.map(lambda x: x[0], built)
    seen = jit(lambda posterior: examine(case, posterior))(fresh)
    return {"built": built, "fresh": fresh, **seen}


CHECKS = []


def check(function):
    """Add to what `test_contract` asks of each case."""
    CHECKS.append(function)
    return function


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(case, subtests):
    seen = look(case)
    for ask in CHECKS:
        with subtests.test(ask.__name__):
            ask(case, seen)


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def same(a, b, tolerance=0.0):
    """Whether two trees hold equal numbers."""
    close = lambda x, y: np.allclose(x, y, rtol=tolerance, atol=tolerance)  # noqa: E731
    return all(close(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def frozen_leaves(tree):
    is_frozen = lambda node: isinstance(node, Frozen)  # noqa: E731
    nodes = jax.tree.leaves(tree, is_leaf=is_frozen)
    return leaves([node for node in nodes if is_frozen(node)])


@check
def one_key_gives_one_draw(case, seen):
    """The first two of the keys over which all is vectorised are the same one."""
    for part in ("draws", "members", "masks"):
        assert all(np.array_equal(x[0], x[1]) for x in leaves(seen[part]))


@check
def a_draw_is_the_same_under_jit_and_vmap_and_without(case, seen):
    if case.network != "mlp" or case.settings:
        return  # slow: once for each family
    xs, outputs, targets = case.data()
    key = jax.random.split(jax.random.key(1), DRAWS)[0]
    plain = seen["fresh"].condition(xs, outputs, targets).sample(key)
    assert same(plain.cost, seen["draws"]["cost"][0], 1e-5)
    assert same(jax.vmap(plain)(xs), seen["draws"]["values"][0], 1e-5)


@check
def two_keys_give_two_draws(case, seen):
    different = len(np.unique(np.asarray(seen["draws"]["values"]).round(6), axis=0))
    if case.name in ONE_DRAW or case.setting("heads") == 1:
        assert different == 1
    elif case.name in FEW_DRAWS:
        assert 1 < different <= (case.setting("heads") or DRAWS)
    else:
        assert different == DRAWS
    values = seen["members"]["values"]
    assert same(values[1], values[2]) == (case.name in SAME_MEMBERS)


@pytest.mark.parametrize("name", ["noisy", "mean_field", "mnf"])
def test_every_layer_has_noise_of_its_own(name):
    """Noise that two layers of one shape shared would move their biases in step."""

    def biases(posterior, key):
        network = posterior.sample(key).network
        return jnp.stack([network.hidden[0].bias, network.head.bias])

    def draws(seed):
        posterior = Case(name, "mlp").build(jax.random.key(seed))
        return jax.vmap(lambda key: biases(posterior, key))(jax.random.split(jax.random.key(1), 50))

    hidden, head = np.moveaxis(jax.jit(draws)(0), 1, 0)
    correlation = np.corrcoef(hidden.T, head.T)[:3, 3:]
    assert np.abs(correlation).max() < 0.6  # 4 standard errors


@check
def cost_is_one_finite_number(case, seen):
    for part in ("draws", "members"):
        cost = np.asarray(seen[part]["cost"])
        assert cost.shape == (DRAWS + 1,)
        assert cost.dtype == np.float32
        assert np.isfinite(cost).all()
        assert (cost != 0).all() == (case.name in WITH_COST)
    assert seen["noise_free"]["cost"] == 0


@check
def a_batch_shares_one_set_of_weights(case, seen):
    """Unless noise is asked for per example, the order of the examples changes nothing else."""
    agree = same(seen["members"]["shuffled"], seen["members"]["values"][:, :, ORDER], 1e-5)
    assert agree == (case.setting("noise") != "example")


@check
def members_have_an_axis_of_their_own(case, seen):
    count = seen["posterior"].num_members
    assert count == (case.setting("heads") or 1)
    assert seen["noise_free"]["values"].shape == (count, BATCH, 3)
    assert seen["members"]["values"].shape == (DRAWS + 1, count, BATCH, 3)
    assert seen["draws"]["values"].shape == (DRAWS + 1, BATCH, 3)


@check
def mean_is_the_average_member_without_noise(case, seen):
    average = np.asarray(seen["noise_free"]["values"]).mean(axis=0)
    assert seen["mean"].shape == average.shape
    assert same(seen["mean"], average, 1e-5)
    alone = case.name in ONE_DRAW or case.setting("heads") == 1
    assert same(seen["mean"], seen["draws"]["values"][0], 1e-5) == alone


@check
def evaluator_scores_without_noise(case, seen):
    if case.name != "bootstrap":  # whose heads vote
        assert same(seen["evaluator"], seen["mean"])
    assert seen["evaluator"].shape == (BATCH, 3)
    assert np.isfinite(seen["evaluator"]).all()


@check
def masks_are_zeros_and_ones(case, seen):
    masks = np.asarray(seen["masks"])
    assert masks.shape == (DRAWS + 1, seen["posterior"].num_members, 50)
    assert set(np.unique(masks)) <= {0.0, 1.0}
    some = case.name == "bootstrap" and case.setting("mask_probability") < 1
    assert masks.all() != some


@check
def gradients_reach_every_trainable_array_and_nothing_else(case, seen):
    params, rest = trainable(seen["posterior"])
    assert same(eqx.combine(params, rest), seen["posterior"])
    frozen = frozen_leaves(seen["posterior"])
    assert bool(frozen) == (case.name in CLOSED_FORM or bool(case.setting("prior_scale")))
    assert not frozen_leaves(params)
    assert len(leaves(params)) + len(frozen) == len(leaves(seen["posterior"]))

    for gradient in leaves(trainable(seen["gradient"])[0]):
        assert np.isfinite(gradient).all()
        assert gradient.any()
    nothing = frozen_leaves(seen["gradient"])
    assert len(nothing) == len(frozen)
    assert not any(gradient.any() for gradient in nothing)


@check
def a_target_network_copies_all_but_constants(case, seen):
    moving, _ = learnt(seen["fresh"])
    count = len(leaves(trainable(seen["fresh"])[0]))
    if case.name in CLOSED_FORM:
        count += len(frozen_leaves(seen["fresh"]))
    assert len(leaves(moving)) == count


@check
def two_seeds_give_two_posteriors(case, seen):
    built = seen["built"]
    for both in leaves(trainable(built)[0]):
        # Deviations and the like start at a constant; what is drawn must differ everywhere.
        assert len(np.unique(both)) == 1 or (both[0] != both[1]).all()
    drawn = [both for both in frozen_leaves(built) if not np.array_equal(both[0], both[1])]
    assert bool(drawn) == (built.num_members > 1 and bool(frozen_leaves(built)))


@check
def condition_is_for_closed_forms_only(case, seen):
    assert same(seen["fresh"], seen["posterior"]) == (case.name not in CLOSED_FORM)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_everything_keeps_the_dtype_of_the_network(case, dtype, x64):
    """Also float32 while float64 is on. Promotion is strict here, so a mixture raises."""
    seen = jax.eval_shape(lambda: examine(case, case.build(jax.random.key(0), dtype), dtype))
    assert {x.dtype for x in jax.tree.leaves(seen)} == {jnp.dtype(dtype)}


def test_bad_settings_are_refused_by_name():
    """As a user meets it, without this session's checks of types, which are sooner."""
    bad = {
        "family": ("mfn", {}),
        "setting of mnf": ("mnf", {"flow_step": 1}),
        "flow_steps": ("mnf", {"flow_steps": -1}),
        "auxiliary_steps": ("mnf", {"auxiliary_steps": 1.5}),
        "flow_hidden": ("mnf", {"flow_hidden": 0}),
        "initial_z_std": ("mnf", {"initial_z_std": 0.0}),
        "initial_gate": ("mnf", {"initial_gate": 11.0}),
        "initial_std": ("mean_field", {"initial_std": -1.0}),
        "prior_std": ("mean_field", {"prior_std": float("nan")}),
        "noise": ("mean_field", {"noise": "examples"}),
        "layers": ("noisy", {"layers": "lst"}),
        "sigma0": ("noisy", {"sigma0": float("inf")}),
        "heads": ("bootstrap", {"heads": True}),
        "shared": ("bootstrap", {"shared": "torsoo"}),
        "mask_probability": ("bootstrap", {"mask_probability": 0.0}),
        "prior_scale": ("bootstrap", {"prior_scale": -1}),
        "noise_std": ("bayes_linear", {"noise_std": "1"}),
    }
    script = f"""if True:
        import jax
        from randq.networks import MLP
        from randq.posteriors import family
        nan, inf = float("nan"), float("inf")
        for setting, (name, settings) in {bad!r}.items():
            try:
                init = lambda key: MLP.create(1, [], 1, key=key)
                family(name, **settings).build(init, jax.random.key(0))
            except ValueError as error:
                got = next(iter(settings.values()), name)
                got = "flow_step" if "flow_step" in settings else got
                ok = str(error).startswith(f"{{setting}}: got {{got!r}}, takes ")
                print("ok" if ok else f"{{setting}}: {{error}}")
            else:
                print(setting, "was accepted")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split("\n") == ["ok"] * len(bad) + [""], done.stdout + done.stderr


def test_family_is_found_by_name():
    for name, kind in FAMILIES.items():
        assert family(name) == kind()
    with pytest.raises(ValueError, match="did you mean 'mean_field'"):
        family("meanfield")
