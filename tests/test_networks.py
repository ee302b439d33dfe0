"""The deterministic networks, against plain NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

from randq.networks import MLP, Conv2d, ConvNet, Linear, Scaling
from randq.types import OneHot

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)


def convolve(image, weight, bias, stride):
    """Cross-correlation channel by channel, without padding; images are height, width, channel."""
    channels = range(image.shape[2])
    full = [
        sum(scipy.signal.correlate2d(image[..., i], weight[..., i, o], "valid") for i in channels)
        for o in range(weight.shape[3])
    ]
    return np.stack(full, axis=-1)[::stride, ::stride] + bias


def relu(x):
    return np.maximum(x, 0)


@given(size_in=st.integers(1, 9), size_out=st.integers(1, 9))
def test_linear(size_in, size_out):
    layer = Linear(
        jnp.asarray(RNG.normal(size=(size_in, size_out)), jnp.float32),
        jnp.asarray(RNG.normal(size=size_out), jnp.float32),
    )
    x = RNG.normal(size=size_in).astype(np.float32)
    expected = [
        sum(x[i] * layer.weight[i, j] for i in range(size_in)) + layer.bias[j]
        for j in range(size_out)
    ]
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [[], [4, 3]])
def test_a_one_hot_input_is_the_vector_it_stands_for(hidden):
    """Values and gradients, with the network shared by a batch; index 6 lies outside: zeros."""
    network = MLP.create(6, hidden, 2, key=KEY)
    inputs = OneHot(jnp.array([0, 5, 3, 3, 6]), 6)

    def total(network, inputs):
        values = jax.vmap(network)(inputs)
        return jnp.sum(jnp.sin(values)), values

    dense = inputs.dense(jnp.float32)
    np.testing.assert_array_equal(dense, np.eye(7, 6)[[0, 5, 3, 3, 6]])
    for function in (total, jax.jit(total)):
        compute = jax.grad(function, has_aux=True)
        (gradient, values), (by_vector, expected) = (
            compute(network, inputs),
            compute(network, dense),
        )
        np.testing.assert_allclose(values, expected, rtol=1e-6)
        for ours, theirs in zip(*map(jax.tree.leaves, (gradient, by_vector)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        jax.vmap(network.features)(inputs), jax.vmap(network.features)(dense)
    )
    with pytest.raises(
        ValueError, match=r"input of a linear layer: got \(5,\), takes shape \(6,\)"
    ):
        network(OneHot(jnp.int32(0), 5))


@pytest.mark.parametrize(("kernel", "stride", "size"), [(1, 1, 3), (3, 2, 8), (4, 3, 9), (3, 1, 3)])
def test_convolution(kernel, stride, size):
    layer = Conv2d.create(2, 3, kernel, stride, key=KEY)
    image = RNG.normal(size=(size, size + 1, 2)).astype(np.float32)
    expected = convolve(image, np.asarray(layer.weight), np.asarray(layer.bias), stride)
    np.testing.assert_allclose(layer(jnp.asarray(image)), expected, rtol=1e-4, atol=1e-5)


def test_mlp():
    network = MLP.create(3, [4, 5], 2, key=KEY, activation=jnp.tanh)
    x = RNG.normal(size=3).astype(np.float32)
    h = x
    for layer in network.hidden:
        h = np.tanh(h @ np.asarray(layer.weight) + np.asarray(layer.bias))
    np.testing.assert_allclose(network.features(jnp.asarray(x)), h, rtol=1e-5)
    expected = h @ np.asarray(network.head.weight) + np.asarray(network.head.bias)
    np.testing.assert_allclose(network(jnp.asarray(x)), expected, rtol=1e-5)


def test_mlp_without_hidden_layers_is_linear():
    network = MLP.create(3, [], 2, key=KEY)
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(network(x), network.head(x))


def test_conv_net():
    network = ConvNet.create((9, 8, 2), [(3, 3, 2), (4, 2, 1)], [5], 2, key=KEY)
    image = RNG.integers(0, 256, size=(9, 8, 2)).astype(np.uint8)
    h = image / 255
    for layer in network.convolutions:
        h = relu(convolve(h, np.asarray(layer.weight), np.asarray(layer.bias), layer.stride))
    h = relu(h.reshape(-1) @ np.asarray(network.hidden[0].weight) + network.hidden[0].bias)
    expected = h @ np.asarray(network.head.weight) + network.head.bias
    # Bytes are scaled, and numbers are taken as they are.
    np.testing.assert_allclose(network(jnp.asarray(image)), expected, rtol=1e-4, atol=1e-5)
    scaled = jnp.asarray(image / 255, jnp.float32)
    np.testing.assert_allclose(network(scaled), expected, rtol=1e-4, atol=1e-5)


def test_nature_network_has_its_published_sizes():
    filters = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    network = jax.eval_shape(lambda: ConvNet.create((84, 84, 4), filters, [512], 6, key=KEY))
    assert network.hidden[0].weight.shape == (3136, 512)
    assert sum(x.size for x in jax.tree.leaves(network)) == 1687206  # Mnih et al. 2015, 6 actions


def test_initial_weights_are_uniform_within_their_bound():
    for layer, fan_in in (
        (Linear.create(100, 300, key=KEY), 100),
        (Conv2d.create(4, 300, 5, key=KEY), 100),
    ):
        weight = np.asarray(layer.weight).ravel()
        assert np.abs(weight).max() <= fan_in**-0.5
        # 30,000 of them: the mean and the deviation have errors of 0.6% and 0.3%.
        np.testing.assert_allclose(weight.std(), (3 * fan_in) ** -0.5, rtol=0.02)
        assert abs(weight.mean()) < 0.03 * fan_in**-0.5
        assert 0.9 * fan_in**-0.5 < np.abs(layer.bias).max() <= fan_in**-0.5


def test_no_two_layers_and_no_two_keys_share_weights():
    a, b = (MLP.create(4, [4, 4], 4, key=jax.random.key(seed)) for seed in (0, 1))
    matrices = [n.weight for net in (a, b) for n in (*net.hidden, net.head)]
    values = np.concatenate([np.ravel(w) for w in matrices])
    assert len(np.unique(values)) == values.size


def test_dtype_is_kept(x64):
    for dtype in (jnp.float32, jnp.float64):
        network = ConvNet.create((4, 4, 1), [(2, 2, 2)], [3], 2, key=KEY, dtype=dtype)
        assert {x.dtype for x in jax.tree.leaves(network)} == {jnp.dtype(dtype)}
        assert network(jnp.zeros((4, 4, 1), jnp.uint8)).dtype == dtype


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Linear.create(0, 2, key=KEY), "^in_features: got 0, takes an integer >= 1"),
        (lambda: Linear.create(2, -1, key=KEY), "^out_features: got -1"),
        (lambda: Linear.create(2, 2, key=KEY, dtype="float64"), "^dtype: got 'float64'.*x64"),
        (lambda: MLP.create(3, [0], 2, key=KEY), "features: got 0"),
        (lambda: Conv2d.create(2, 3, 0, key=KEY), "^kernel: got 0"),
        (lambda: Conv2d.create(2, 3, 3, -1, key=KEY), "^stride: got -1"),
        (lambda: ConvNet.create((-4, -4, 1), [], [], 2, key=KEY), "^image: got -4"),
        (lambda: ConvNet.create((7, 84, 4), [(32, 8, 4)], [], 2, key=KEY), "^image: got .*fits"),
        (lambda: Linear.create(3, 2, key=KEY)(jnp.zeros(4)), r"linear.*got \(4,\).*shape \(3,\)"),
        (lambda: MLP.create(3, [4], 2, key=KEY)(jnp.zeros(4)), r"got \(4,\), takes shape \(3,\)"),
        (
            lambda: Conv2d.create(2, 3, 3, key=KEY)(jnp.zeros((5, 5, 4))),
            r"convolution: got \(5, 5, 4\), takes shape \(height, width, 2\)",
        ),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_inputs_with_bounds_are_scaled_and_others_left_alone():
    scaling = Scaling.between((-1.2, None, 0.0, -1e9), (0.6, 3.0, 0.0, 1e9))
    x = jnp.array([-1.2, 5.0, 7.0, 9.0])
    np.testing.assert_allclose(scaling(x), [-1.0, 5.0, 7.0, 9.0], rtol=1e-6)
    np.testing.assert_allclose(scaling(x.at[0].set(0.6))[0], 1.0, rtol=1e-6)
    plain = MLP.create(4, [8], 2, key=KEY)
    scaled = MLP.create(4, [8], 2, key=KEY, scaling=scaling)
    np.testing.assert_allclose(scaled(x), plain(scaling(x)), rtol=1e-6)


def test_channels_may_come_first_and_flags_are_not_scaled():
    image = RNG.integers(0, 2, size=(10, 9, 3)).astype(bool)
    network = ConvNet.create((10, 9, 3), [(4, 3, 1)], [5], 2, key=KEY)
    first = ConvNet.create((3, 10, 9), [(4, 3, 1)], [5], 2, key=KEY)
    expected = network(jnp.asarray(image, jnp.float32))
    np.testing.assert_allclose(network(jnp.asarray(image)), expected, rtol=1e-6)
    np.testing.assert_allclose(first(jnp.asarray(image.transpose(2, 0, 1))), expected, rtol=1e-6)
