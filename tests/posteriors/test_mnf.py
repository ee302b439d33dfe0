"""MNF against golden values, an implementation in plain NumPy, and cases with a known answer."""

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from randq.flows import Flow, RealNVPStep
from randq.networks import MLP, Conv2d, ConvNet, Linear
from randq.noise import normals
from randq.posteriors import MNF, MeanField
from randq.posteriors.mean_field import MeanFieldLayer
from randq.posteriors.mnf import Auxiliary, MNFLayer, NoiseSample

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "mnf_layer.json"


# --- Golden values -------------------------------------------------------------------------------


def check_golden(path, *arguments):
    command = [sys.executable, str(TESTS / "check_golden.py"), str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_golden_values(dtype):
    done = check_golden(GOLDEN, "--dtype", dtype)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == len(json.loads(GOLDEN.read_text()))


def test_broken_golden_values_are_refused(tmp_path):
    """Each of these differs from a right case in one place."""
    right = next(case for case in json.loads(GOLDEN.read_text()) if not case["posterior"]["flow"])
    changed, not_a_number, missing, short, gradient = (copy.deepcopy(right) for _ in range(5))
    changed["expected"]["regularization_cost"] *= 1 + 1e-8
    not_a_number["expected"]["output"][0][0] = float("nan")
    del missing["expected"]["z_K"]
    short["expected"]["output"] = short["expected"]["output"][:-1]
    gradient["expected"]["gradient_of_cost"]["b2"][0] += 1e-6
    cases = [changed, right, not_a_number, missing, short, gradient]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(cases))
    done = check_golden(path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line[:4].strip() for line in lines[:6]] == ["FAIL", "ok", *["FAIL"] * 4]
    assert "z_K" in lines[3]


@pytest.mark.parametrize("text", ["not JSON", "[]", None])
def test_what_is_no_golden_file_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    done = check_golden(path)
    assert done.returncode not in (0, 1)
    assert "not a golden file" in done.stderr
    assert "Traceback" not in done.stderr


# --- The paper's formulas once more, in plain NumPy ----------------------------------------------


def np_sigmoid(x):
    return 1 / (1 + np.exp(-x))


def np_flow(steps, z, mask=None):
    log_det = 0.0
    for step in steps:
        m = np.asarray(step["mask"]) if mask is None else np.full(len(z), mask)
        h = np.tanh((m * z) @ step["a_weight"] + step["a_bias"])
        mu = h @ step["b_weight"] + step["b_bias"]
        sigma = np_sigmoid(h @ step["c_weight"] + step["c_bias"])
        z = m * z + (1 - m) * (z * sigma + (1 - sigma) * mu)
        log_det = log_det + np.sum((1 - m) * np.log(sigma))
    return z, log_det


def np_log_normal(x, mean, variance):
    return np.sum(-0.5 * np.log(2 * np.pi * variance) - (x - mean) ** 2 / (2 * variance))


def np_kl(mean, std, prior_std):
    ratio = (std / prior_std) ** 2
    return np.sum(0.5 * (ratio + (mean / prior_std) ** 2 - 1 - np.log(ratio)))


def np_layer(case, prior_std=1.0):
    """z_K, log-det, weights (z first), bias and cost; every operation is analytic."""
    q, r, noise = case["posterior"], case["auxiliary"], case["noise"]
    z0 = q["z0_mean"] + np.exp(q["z0_log_std"]) * noise["epsilon_z"]
    z, log_det = np_flow(q["flow"], z0)
    mean, std = z[:, None] * q["weight_mean"], np.exp(q["weight_log_std"])
    weight = mean + std * noise["epsilon_weight"]
    bias = q["bias_mean"] + np.exp(q["bias_log_std"]) * noise["epsilon_bias"]
    kl = np_kl(mean, std, prior_std) + np_kl(q["bias_mean"], np.exp(q["bias_log_std"]), prior_std)
    log_q = np_log_normal(z0, q["z0_mean"], np.exp(q["z0_log_std"]) ** 2) - log_det
    back, auxiliary_log_det = np_flow(r["flow"], z)
    s = np.mean(np.tanh(r["c"] @ weight))
    log_r = np_log_normal(back, r["b1"] * s, np.exp(-r["b2"] * s)) + auxiliary_log_det
    return z, log_det, weight, bias, kl + log_q - log_r


def np_gradient(case):
    """The exact gradient of the cost: the imaginary part after a step of 1e-30 i."""

    def of(array):
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + 1e-30j
            gradient[index] = np_layer(work)[4].imag / 1e-30
            array[index] = kept
        return gradient.tolist()

    work = as_arrays(case, complex)

    def of_flow(steps):
        return [{k: of(v) for k, v in step.items() if k != "mask"} for step in steps]

    q, r = work["posterior"], work["auxiliary"]
    gradient = {k: of(v) for k, v in q.items() if k != "flow"}
    gradient |= {k: of(v) for k, v in r.items() if k != "flow"}
    return gradient | {"flow": of_flow(q["flow"]), "auxiliary_flow": of_flow(r["flow"])}


def as_arrays(tree, dtype=float):
    if isinstance(tree, dict):
        return {k: as_arrays(v, float if k == "mask" else dtype) for k, v in tree.items()}
    if isinstance(tree, list) and (not tree or isinstance(tree[0], dict)):
        return [as_arrays(v, dtype) for v in tree]
    return np.array(tree, dtype)


def as_lists(tree):
    return jax.tree.map(lambda x: np.asarray(x).tolist(), tree)


def random_case(rng, name, size, out, q_steps, r_steps, hidden=3):
    def array(*shape, scale=1.0, shift=0.0):
        return shift + scale * rng.normal(size=shape)

    def flow(steps):
        def linear(name, a, b):
            return {f"{name}_weight": array(a, b), f"{name}_bias": array(b)}

        return [
            linear("a", size, hidden)
            | linear("b", hidden, size)
            | linear("c", hidden, size)
            | {"mask": rng.integers(0, 2, size).astype(float)}
            for _ in range(steps)
        ]

    case = {
        "posterior": {
            "weight_mean": array(size, out),
            "weight_log_std": array(size, out, scale=0.3, shift=-1),
            "bias_mean": array(out),
            "bias_log_std": array(out, scale=0.3, shift=-1),
            "z0_mean": array(size, scale=0.3, shift=1),
            "z0_log_std": array(size, scale=0.3, shift=-1),
            "flow": flow(q_steps),
        },
        "auxiliary": {
            "c": array(size),
            "b1": array(size),
            "b2": array(size),
            "flow": flow(r_steps),
        },
        "noise": {
            "epsilon_z": array(size),
            "epsilon_weight": array(size, out),
            "epsilon_bias": array(out),
        },
    }
    x = array(2, size)
    z, log_det, weight, bias, cost = np_layer(case)
    q = case["posterior"]
    mean_z = np_flow(q["flow"], q["z0_mean"], mask=0.5)[0]
    expected = {
        "z_K": z,
        "sum_log_det": log_det,
        "output": x @ weight + bias,
        "output_noise_disabled": x @ (mean_z[:, None] * q["weight_mean"]) + q["bias_mean"],
        "regularization_cost": cost,
        "gradient_of_cost": np_gradient(case),
    }
    return {"name": name, "x": x.tolist()} | as_lists(case) | {"expected": as_lists(expected)}


def test_other_sizes_and_flows_against_numpy(tmp_path):
    rng = np.random.default_rng(0)
    cases = [
        random_case(rng, "3_steps_1_back", size=5, out=2, q_steps=3, r_steps=1),
        random_case(rng, "0_steps_2_back", size=2, out=4, q_steps=0, r_steps=2),
        random_case(rng, "one_by_one", size=1, out=1, q_steps=1, r_steps=0),
    ]
    path = tmp_path / "generated.json"
    path.write_text(json.dumps(cases))
    done = check_golden(path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_numpy_agrees_with_the_golden_file():
    """So that the implementation above is itself tied to something from outside."""
    for case in json.loads(GOLDEN.read_text()):
        arrays = as_arrays({k: case[k] for k in ("posterior", "auxiliary", "noise")})
        expected = case["expected"]
        z, log_det, weight, bias, cost = np_layer(arrays)
        np.testing.assert_allclose(z, expected["z_K"], rtol=1e-12)
        np.testing.assert_allclose(log_det, expected["sum_log_det"], rtol=1e-12)
        np.testing.assert_allclose(np.array(case["x"]) @ weight + bias, expected["output"])
        np.testing.assert_allclose(cost, expected["regularization_cost"], rtol=1e-12)


# --- Convolutions --------------------------------------------------------------------------------


def as_case(layer, noise, rows):
    """A layer and its noise in the form of the golden file, weights as rows that z multiplies."""

    def flow(flow, masks):
        return [
            {f"{n}_{p}": getattr(getattr(step, n), p) for n in "abc" for p in ("weight", "bias")}
            | {"mask": mask}
            for step, mask in zip(flow.steps, masks, strict=True)
        ]

    r = layer.auxiliary
    case = {
        "posterior": {
            "weight_mean": rows(layer.mean_layer.weight),
            "weight_log_std": rows(layer.weight_log_std),
            "bias_mean": layer.mean_layer.bias,
            "bias_log_std": layer.bias_log_std,
            "z0_mean": layer.z0_mean,
            "z0_log_std": layer.z0_log_std,
            "flow": flow(layer.flow, noise.masks),
        },
        "auxiliary": {
            "c": r.c,
            "b1": r.b1,
            "b2": r.b2,
            "flow": flow(r.flow, noise.auxiliary_masks),
        },
        "noise": {
            "epsilon_z": noise.epsilon_z,
            "epsilon_weight": rows(noise.epsilon_weight),
            "epsilon_bias": noise.epsilon_bias,
        },
    }
    return jax.tree.map(np.asarray, case)


def jumbled(layer, key):
    """The same with a random number added everywhere."""
    leaves, structure = jax.tree.flatten(layer)
    keys = jax.random.split(key, len(leaves))
    noise = [
        x + 0.3 * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)
    ]
    return structure.unflatten(noise)


def conv_layer(dtype=jnp.float32, **settings):
    def init(key):
        return ConvNet.create((5, 5, 2), [(3, 2, 2)], [], 2, key=key, dtype=dtype)

    def build(key):
        posterior = MNF(layers="all", flow_hidden=4, **settings).build(init, key)
        return jumbled(posterior.network.convolutions[0], key)

    return jax.jit(build)(jax.random.key(3))


def test_convolution_multiplies_its_filters_by_z(x64):
    layer = conv_layer(jnp.float64, flow_steps=2, auxiliary_steps=1, prior_std=0.7)
    noise = normals(layer.noise, jax.random.key(4), jnp.float64)
    assert noise.epsilon_z.shape == (3,)  # one for each filter
    drawn, cost = jax.jit(MNFLayer.draw)(layer, noise)
    mean = jax.jit(MNFLayer.mean)(layer)

    def rows(weight):
        return np.stack([np.ravel(weight[..., o]) for o in range(3)])

    case = as_case(layer, noise, rows)
    _, _, weight, bias, expected = np_layer(case, prior_std=0.7)
    np.testing.assert_allclose(rows(drawn.weight), weight, rtol=1e-12)
    np.testing.assert_allclose(drawn.bias, bias, rtol=1e-12)
    np.testing.assert_allclose(cost, expected, rtol=1e-12)
    z = np_flow(case["posterior"]["flow"], case["posterior"]["z0_mean"], mask=0.5)[0]
    for o in range(3):
        by_hand = z[o] * layer.mean_layer.weight[..., o]
        np.testing.assert_allclose(mean.weight[..., o], by_hand, rtol=1e-12)
    np.testing.assert_array_equal(mean.bias, layer.mean_layer.bias)


# --- Cases with a known answer -------------------------------------------------------------------


def gaussian_layer(mu, sigma, bias=0.5, bias_std=0.2, prior_std=1.0, **changes):
    """K = 0, z ~ N(0, 1), and r(z | w) = N(0, 1) whatever w is."""
    size, out = mu.shape
    zeros = jnp.zeros(size)
    layer = MNFLayer(
        mean_layer=Linear(jnp.asarray(mu), jnp.full(out, bias)),
        weight_log_std=jnp.log(jnp.asarray(sigma)),
        bias_log_std=jnp.full(out, jnp.log(bias_std)),
        z0_mean=zeros,
        z0_log_std=zeros,
        flow=Flow(()),
        auxiliary=Auxiliary(zeros, zeros, zeros, Flow(())),
        prior_std=prior_std,
    )
    return replace(layer, **changes)


def costs(layer, draws, seed=0):
    def one(key):
        return layer.draw(normals(layer.noise, key, layer.z0_mean.dtype))[1]

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), draws)))


@pytest.mark.parametrize("prior_std", [1.0, 2.0])
def test_bound_is_the_true_kl_plus_mutual_information(prior_std, x64):
    """With r = q(z), KL(q(z | w) || r), averaged over w, is the mutual information of z and w.

    Row i of w is N(0, mu_i mu_i^T + diag sigma_i^2), so that both are known.
    """
    mu = np.array([[1.0, -0.5], [0.3, 2.0]])
    sigma = np.array([[0.5, 1.0], [0.8, 0.4]])
    true_kl, information = 0.0, 0.0
    for m, s in zip(mu, sigma, strict=True):
        covariance = np.outer(m, m) + np.diag(s**2)
        log_ratio = 2 * np.log(prior_std**2) - np.linalg.slogdet(covariance)[1]
        true_kl += 0.5 * (np.trace(covariance) / prior_std**2 - 2 + log_ratio)
        information += 0.5 * np.log(1 + np.sum((m / s) ** 2))
    true_kl += 2 * np_kl(0.5, 0.2, prior_std)  # the biases

    sampled = costs(gaussian_layer(mu, sigma, prior_std=prior_std), 40_000)
    error = sampled.std() / len(sampled) ** 0.5
    assert error < 0.02
    assert sampled.mean() > true_kl + 10 * error
    assert abs(sampled.mean() - (true_kl + information)) < 4 * error


def test_bound_is_tight_if_r_is_the_posterior_of_z(x64):
    """If mu = 0, then w says nothing about z, r = q(z) is right, and every sample is the KL."""
    sigma = np.array([[0.5, 1.0]])
    sampled = costs(gaussian_layer(np.zeros((1, 2)), sigma), 100)
    exact = np_kl(0.0, sigma, 1.0) + 2 * np_kl(0.5, 0.2, 1.0)
    np.testing.assert_allclose(sampled, exact, rtol=1e-12)


def test_bound_holds_with_flows(x64):
    """One weight, one step in both flows: a mask of 1 keeps z, a mask of 0 makes it another
    Gaussian, so that q(w) is a mixture of two, whose KL is one integral."""
    rng = np.random.default_rng(0)

    def step():
        shapes = ((1, 2), (2, 1), (2, 1))
        return RealNVPStep(
            *(
                Linear(jnp.asarray(rng.normal(size=s)), jnp.asarray(rng.normal(size=s[1])))
                for s in shapes
            )
        )

    q_step, r_step = step(), step()
    mu, sigma, z_mean, z_std = 1.5, 0.3, 0.8, 0.5
    one = jnp.ones(1)
    layer = gaussian_layer(
        np.array([[mu]]),
        np.array([[sigma]]),
        z0_mean=z_mean * one,
        z0_log_std=np.log(z_std) * one,
        flow=Flow((q_step,)),
        auxiliary=Auxiliary(0.7 * one, 0.9 * one, -0.4 * one, Flow((r_step,))),
    )
    h = np.tanh(q_step.a.bias)
    gate = np_sigmoid(h @ q_step.c.weight + q_step.c.bias)[0]
    shift = (h @ q_step.b.weight + q_step.b.bias)[0]
    moved_mean, moved_std = gate * z_mean + (1 - gate) * shift, gate * z_std

    def density(w):
        parts = [(z_mean, z_std), (moved_mean, moved_std)]
        return np.mean([scipy.stats.norm.pdf(w, mu * m, np.hypot(mu * s, sigma)) for m, s in parts])

    def integrand(w):
        q = density(w)
        return q * (np.log(q) - scipy.stats.norm.logpdf(w)) if q > 0 else 0.0

    true_kl = scipy.integrate.quad(integrand, -20, 20, limit=200)[0] + np_kl(0.5, 0.2, 1.0)
    sampled = costs(layer, 40_000)
    assert sampled.mean() > true_kl + 4 * sampled.std() / 200


def test_bbqn_is_mnf_with_z_fixed_at_one(x64):
    """The same noise gives the same weights, and the same KL of the weights."""
    rng = np.random.default_rng(0)
    mean_layer = Linear(jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(rng.normal(size=2)))
    std, bias_std = np.exp(rng.normal(size=(3, 2)) - 1), np.exp(rng.normal(size=2) - 1)
    mean_field = MeanFieldLayer(
        mean_layer=mean_layer,
        weight_rho=jnp.log(jnp.expm1(std)),
        bias_rho=jnp.log(jnp.expm1(bias_std)),
        prior_std=0.8,
    )
    z_log_std = -16.0  # far below that, z_0 - mean is lost to rounding
    mnf = gaussian_layer(
        np.zeros((3, 2)),
        std,
        prior_std=0.8,
        mean_layer=mean_layer,
        bias_log_std=jnp.log(jnp.asarray(bias_std)),
        z0_mean=jnp.ones(3),
        z0_log_std=jnp.full(3, z_log_std),
    )
    weight, bias, z = (jnp.asarray(rng.normal(size=s)) for s in ((3, 2), 2, 3))
    none = jnp.zeros((0, 3))
    bbqn_layer, bbqn_cost = mean_field.draw((weight, bias))
    mnf_layer, mnf_cost = mnf.draw(NoiseSample(z, weight, bias, none, none))
    np.testing.assert_allclose(mnf_layer.weight, bbqn_layer.weight, rtol=1e-5)
    np.testing.assert_allclose(mnf_layer.bias, bbqn_layer.bias, rtol=1e-5)
    np.testing.assert_allclose(mnf.mean().weight, mean_field.mean().weight, rtol=1e-5)

    # What is left of the cost is about z alone: log q(z) - log r(z), here with r = N(0, 1).
    log_q = np.sum(scipy.stats.norm.logpdf(z) - z_log_std)
    log_r = 3 * scipy.stats.norm.logpdf(1.0)
    np.testing.assert_allclose(mnf_cost - (log_q - log_r), bbqn_cost, rtol=1e-6)


# --- Noise ---------------------------------------------------------------------------------------


def linear_layer(family, dtype=jnp.float32):
    def build(key):
        init = lambda k: MLP.create(3, [], 2, key=k, dtype=dtype)  # noqa: E731
        return family.build(init, key).network.head

    return jax.jit(build)(jax.random.key(0))


def test_mean_is_the_draw_with_noise_disabled_and_half_masks():
    layer = linear_layer(MNF(flow_steps=2))
    half = jnp.full((2, 3), 0.5)
    zeros = normals(layer.noise, jax.random.key(0), jnp.float32)
    zeros = jax.tree.map(jnp.zeros_like, zeros)._replace(masks=half)
    expected, _ = layer.draw(zeros)
    for got, want in zip(jax.tree.leaves(layer.mean()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_masks_are_drawn_afresh_with_each_draw():
    """With all deviations at nothing, draws still differ, through the masks alone: 8 sets of 3."""
    layer = linear_layer(MNF(flow_steps=1))
    layer = eqx.tree_at(
        lambda x: (x.weight_log_std, x.bias_log_std, x.z0_log_std),
        layer,
        replace_fn=lambda x: jnp.full_like(x, -40.0),
    )

    def one(key):
        noise = normals(layer.noise, key, jnp.float32)
        return layer.draw(noise)[0].weight, noise.masks, noise.auxiliary_masks

    weights, masks, auxiliary = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 200))
    assert len(np.unique(np.asarray(weights).round(6), axis=0)) == 8
    assert len(np.unique(masks, axis=0)) == len(np.unique(auxiliary, axis=0)) == 8
    assert abs(np.corrcoef(np.ravel(masks), np.ravel(auxiliary))[0, 1]) < 0.2


def test_open_gates_leave_nothing_for_masks_to_decide():
    """Both flows begin as the identity; with closed ones half of z is moved away."""
    for gate, most in ((10.0, 1e-3), (0.0, 1.0)):
        layer = linear_layer(MNF(flow_steps=1, initial_gate=gate))
        for flow in (layer.flow, layer.auxiliary.flow):
            z, _ = flow(jnp.ones(3), jnp.zeros((1, 3)))
            assert most / 100 < np.max(np.abs(z - 1)) < most


@pytest.mark.parametrize("network", ["linear", "conv"])
@pytest.mark.parametrize("family", [MNF(layers="all"), MeanField(layers="all")], ids=["mnf", "bbb"])
def test_noise_on_outputs_has_the_moments_of_noise_on_weights(family, network):
    """The local reparametrisation: mean and variance of each output, for one input."""

    def layer(key):
        if network == "linear":
            plain = family.build(lambda k: MLP.create(3, [], 2, key=k), key).network.head
        else:
            init = lambda k: ConvNet.create((3, 3, 2), [(2, 2, 1)], [], 1, key=k)  # noqa: E731
            plain = family.build(init, key).network.convolutions[0]
        return jumbled(plain, key)

    shape = (3,) if network == "linear" else (3, 3, 2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)

    @jax.jit
    def outputs(keys):
        posterior = layer(jax.random.key(1))

        def both(key):
            sampled, _ = posterior.draw(normals(posterior.noise, key, jnp.float32))
            return sampled(x), posterior.sample_outputs(key)(x)

        return jax.vmap(both)(keys)

    count = 40_000
    weights, local = map(np.asarray, outputs(jax.random.split(jax.random.key(2), count)))
    spread = weights.std(axis=0)
    np.testing.assert_allclose(local.std(axis=0), spread, rtol=0.04)
    assert (
        np.abs(local.mean(axis=0) - weights.mean(axis=0)) < 5 * spread * (2 / count) ** 0.5
    ).all()


def test_convolution_layers_are_random_only_if_asked():
    def build(layers):
        init = lambda k: ConvNet.create((5, 5, 2), [(3, 3, 2)], [4], 2, key=k)  # noqa: E731
        return jax.eval_shape(lambda: MNF(layers=layers).build(init, jax.random.key(0))).network

    kinds = {
        layers: [type(x) for x in (*n.convolutions, *n.hidden, n.head)]
        for layers, n in ((layers, build(layers)) for layers in ("linear", "last", "all"))
    }
    assert kinds == {
        "linear": [Conv2d, MNFLayer, MNFLayer],
        "last": [Conv2d, Linear, MNFLayer],
        "all": [MNFLayer, MNFLayer, MNFLayer],
    }
