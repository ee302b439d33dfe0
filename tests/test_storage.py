"""A file gives back exactly what was put into it, or is refused in one sentence."""

import errno
import json
import os
import pickle
import re
import resource
import stat
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from randq import storage
from randq.networks import MLP
from randq.posteriors import FAMILIES
from randq.storage import StorageError, load, read_header, save
from randq.version import VERSION

HEADER = {"agent": {"kind": "mnf", "gamma": 0.999}, "seeds": [0, 1], "name": "höhe \ud800 \n"}


class Part(NamedTuple):
    key: jax.Array
    keys: jax.Array
    count: jax.Array


def example():
    """A bit of everything."""
    return {
        "network": MLP.create(3, [4], 2, key=jax.random.key(0)),
        "part": Part(jax.random.key(1), jax.random.split(jax.random.key(2), 3), jnp.int32(7)),
        "host": [np.arange(5.0), np.array(True), np.zeros((0, 3), np.int8)],
        "half": (jnp.arange(3, dtype=jnp.bfloat16), None),
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "agent.randq"
    save(path, example(), HEADER)
    return path


def bits(tree):
    """All that there is to compare."""

    def one(leaf):
        key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if key else leaf)
        return str(leaf.dtype), isinstance(leaf, np.ndarray), array.shape, array.tobytes()

    return jax.tree.structure(tree), [one(leaf) for leaf in jax.tree.leaves(tree)]


def refused(path, like=None, match="."):
    """Refused soon, in one sentence that names the file, whatever is asked of it."""
    like = example() if like is None else like
    start = time.process_time()  # not that of the clock: the machine may be busy
    with pytest.raises(StorageError, match=match) as caught:
        load(path, like)
    assert time.process_time() - start < 1
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert len(line) - len(str(path)) < 500


def header_refused(path, match):
    with pytest.raises(StorageError, match=match):
        read_header(path)


def craft(path, contents, **changes):
    """A file of our format with any arrays, and checksums that are right if not changed."""
    metadata = {"randq": "9.9", "format": "1", "header": "{}", "arrays": storage._digest(contents)}
    metadata |= changes
    metadata = {name: text for name, text in metadata.items() if text is not None}
    metadata = {"sha256": storage._seal(metadata), **metadata}
    path.write_bytes(safetensors.numpy.save(contents, metadata))
    return path


# Round trips


def test_round_trip(path):
    assert bits(load(path, example())) == bits(example())
    assert read_header(path) == HEADER


def test_into_shapes_alone(path):
    structs = jax.eval_shape(lambda: (example()["network"], example()["part"]))
    like = {**example(), "network": structs[0], "part": structs[1]}
    assert bits(load(path, like)) == bits(example())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_posterior(tmp_path, name):
    def build(key):
        return FAMILIES[name]().build(lambda k: MLP.create(3, [4], 2, key=k), key)

    posterior = eqx.filter_jit(build)(jax.random.key(0))
    save(tmp_path / "x", posterior, {})
    loaded = load(tmp_path / "x", eqx.filter_eval_shape(build, jax.random.key(1)))
    assert bits(loaded) == bits(posterior)


@pytest.mark.parametrize("dtype", storage.TYPES)
def test_every_type(tmp_path, dtype):
    tree = {"": np.array([[0, 1], [1, 0]]).astype(jnp.dtype(dtype) if dtype[0] == "b" else dtype)}
    save(tmp_path / "x", tree, {})
    assert bits(load(tmp_path / "x", tree)) == bits(tree)


def test_odd_trees(tmp_path):
    for tree in (jnp.ones(3), (), {"a": None}, {"a": {"b": jnp.ones(1)}, "a.b": jnp.zeros(1)}):
        save(tmp_path / "x", tree, {})
        assert bits(load(tmp_path / "x", tree)) == bits(tree)


def test_any_layout_of_memory(tmp_path):
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    save(tmp_path / "x", [matrix.T, matrix[:, ::2], matrix.astype(">f4")], {})
    loaded = load(tmp_path / "x", [matrix.T, matrix[:, ::2], matrix])
    for got, wanted in zip(loaded, [matrix.T, matrix[:, ::2], matrix], strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_double_precision(tmp_path, x64):
    tree = {"x": jnp.array([0.1], jnp.float64)}
    save(tmp_path / "x", tree, {})
    assert bits(load(tmp_path / "x", tree)) == bits(tree)
    with jax.enable_x64(False):
        refused(tmp_path / "x", tree, match="x.*: got float64, which takes jax_enable_x64")


def test_the_header_is_read_without_the_arrays(path, monkeypatch):
    start = path.read_bytes()
    length = int.from_bytes(start[:8], "little")
    path.write_bytes(start[: 8 + length] + bytes(len(start) - 8 - length))
    assert read_header(path) == HEADER
    refused(path, match="its arrays do not match their checksum")


# What cannot be saved


@pytest.mark.parametrize(
    ("leaf", "match"),
    [
        (3.0, "an array"),
        (jax.nn.relu, "an array"),
        (jax.ShapeDtypeStruct((), jnp.float32), "an array"),
        (np.array(["a"]), "one of bool"),
        (np.array([None]), "one of bool"),
        (np.zeros(1, np.complex128), "one of bool"),
        (np.zeros(1, ml_dtypes.float8_e4m3fn), "one of bool"),
        (jnp.array([1, jnp.nan]), "finite"),
        (jnp.array([1, jnp.inf], jnp.bfloat16), "finite"),
    ],
)
def test_what_cannot_be_saved(path, leaf, match):
    old = path.read_bytes()
    with pytest.raises(ValueError, match=rf"^\['a'\]\[0\]: got .*, takes .*{match}"):
        save(path, {"a": [leaf]}, {})
    assert path.read_bytes() == old


def test_headers_that_cannot_be_saved(path):
    old = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        save(path, (), {"x": float("nan")})
    with pytest.raises(TypeError, match="JSON"):
        save(path, (), {"x": path})
    with pytest.raises(ValueError, match=r"^header: got \d+, takes at most 4194304 bytes"):
        save(path, (), {"x": "y" * storage.MAX_HEADER})
    assert path.read_bytes() == old


# A file is replaced as a whole


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def interrupted(monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(os, name, no_space)
        yield


@contextmanager
def full_disk(monkeypatch, name):
    """The system itself refuses the thousandth byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    ("failure", "name"), [(interrupted, "fsync"), (interrupted, "replace"), (full_disk, "")]
)
def test_a_full_disk_leaves_all_as_it_was(path, monkeypatch, failure, name, exists):
    old = path.read_bytes()
    target = path if exists else path.with_name("new")
    with (
        failure(monkeypatch, name),
        pytest.raises(StorageError, match=r"cannot be written .(No space|File too large)"),
    ):
        save(target, {"x": jnp.ones(1000)}, {})
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == old


def test_an_interrupt_leaves_all_as_it_was(path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    old = path.read_bytes()
    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        save(path, (), {})
    assert [p.read_bytes() for p in path.parent.iterdir()] == [old]


def test_what_is_on_the_disk_when(path, monkeypatch):
    """First the whole file, then its name, then the folder."""
    events, fsync, replace = [], os.fsync, os.replace

    def spy_fsync(fd):
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        events.append("folder" if is_folder else os.fstat(fd).st_size)
        fsync(fd)

    def spy_replace(old, new):
        assert Path(old).parent == Path(new).parent
        events.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    save(path, {"x": jnp.ones(1000)}, {})
    assert events == [path.stat().st_size, "name", "folder"]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_synced_is_no_failure(path, monkeypatch):
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (no_space if stat.S_ISDIR(os.fstat(fd).st_mode) else fsync)(fd)
    )
    save(path, (), {"new": True})
    assert read_header(path) == {"new": True}


def test_where_nothing_can_be_written(tmp_path):
    for target in (tmp_path / "no" / "x", tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            save(target, (), {})
    assert list(tmp_path.iterdir()) == []


# Damaged and foreign files


class Bomb:
    def __reduce__(self):
        return (os.abort, ())


def test_files_of_others(tmp_path):
    path = tmp_path / "x"
    refused(path, match="cannot be read .No such file")
    header_refused(path, match="cannot be read .No such file")
    refused(tmp_path, match="is not a file")
    refused(Path("/dev/zero"), match="is not a file")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", match="is not a file")
    for content in (b"", b"\0", bytes(7), bytes(8), bytes(1000), b"{}", b"GIF89a" * 99):
        path.write_bytes(content)
        refused(path, match="no file of randq")
        header_refused(path, match="no file of randq")
    for protocol in range(6):
        path.write_bytes(pickle.dumps(Bomb(), protocol))
        refused(path, match="no file of randq")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b" * 1000)
    refused(path, match="no file of randq")
    np.save(path.with_suffix(".npy"), np.ones(3))
    refused(path.with_suffix(".npy"), match="no file of randq")
    safetensors.numpy.save_file({"a": np.ones(1)}, path, {"format": "pt"})
    refused(path, match="is no file of randq$")
    eqx.tree_serialise_leaves(path, example()["network"])
    refused(path, match="no file of randq")


def test_every_truncation(path):
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        refused(path, match="no file of randq")
        header_refused(path, match="no file of randq")


def test_other_formats(tmp_path):
    said = r"made by randq '9\.9' in format '2'; randq 0\.\d+\.\d+ reads format 1"
    path = craft(tmp_path / "x", {}, format="2", news="yes")
    refused(path, (), said)
    header_refused(path, said)
    for other in ("0", "01", "1.0", "", "one", None, "9" * 100_000):
        refused(craft(path, {}, format=other), (), "made by randq '9.9' in format")
    refused(craft(path, {}, randq=None), (), "is no file of randq")


def test_headers(tmp_path):
    path = tmp_path / "x"
    assert read_header(craft(path, {}, header='{"a": [1]}')) == {"a": [1]}
    for text in (
        "",
        "[]",
        "3",
        "{",
        '{"a": 1}}',
        '{"a":' + "[" * 100_000,
        '{"a":' + "1" * 9999 + "}",
    ):
        header_refused(craft(path, {}, header=text), "header is no JSON object")
    for change in ({"header": None}, {"arrays": None}, {"extra": ""}, {"sha256": "0" * 64}):
        refused(craft(path, {}, **change), (), "header does not match its checksum")
    refused(craft(path, {}, arrays="0" * 64), (), "arrays do not match their checksum")
    long = json.dumps({"a": "b" * storage.MAX_HEADER})
    header_refused(craft(path, {}, header=long), r"no file of randq \(a header of \d+ bytes\)$")


def test_other_arrays(tmp_path):
    path = tmp_path / "x"
    tree = {"a": jnp.ones((2, 3)), "b": jnp.ones(2, jnp.int32)}
    save(path, tree, {})
    for like, match in [
        ({"a": tree["a"]}, r"unknown arrays \[.*'b'"),
        ({**tree, "c": jnp.ones(1)}, r"lacks the arrays \[.*'c'"),
        ([tree["a"], tree["b"]], "lacks the arrays"),
        ({**tree, "a": jnp.ones((3, 2))}, r"'a'.*: got .'F32', \[2, 3\].*takes .'F32', \[3, 2\]"),
        ({**tree, "a": jnp.ones(6)}, "'a'"),
        ({**tree, "a": jnp.ones((2, 3), jnp.int32)}, r"got .'F32', .*takes .'I32'"),
        ({**tree, "b": jnp.ones(2, jnp.uint32)}, r"got .'I32', .*takes .'U32'"),
        ({**tree, "a": np.ones((2, 3), np.complex128)}, "takes .None"),
    ]:
        refused(path, like, match)


def test_another_version_is_named_where_a_file_does_not_fit(tmp_path, monkeypatch):
    path = tmp_path / "x"
    with monkeypatch.context() as patch:
        patch.setattr(storage, "VERSION", "0.0.7")
        save(path, {"a": jnp.ones(2)}, {})
    ours = re.escape(f"; made by randq '0.0.7', this is {VERSION}")
    refused(path, {}, r"unknown arrays \[.*" + ours)
    refused(path, {"b": jnp.ones(2)}, r"lacks the arrays \[.*" + ours)
    refused(path, {"a": jnp.ones(3)}, r"takes .*" + ours)
    assert load(path, {"a": jnp.ones(2)})["a"].shape == (2,)


def test_kinds_of_random_keys(tmp_path):
    path = tmp_path / "x"
    keys = [jax.random.key(0, impl=impl) for impl in ("threefry2x32", "rbg", "unsafe_rbg")]
    trees = [*keys, *map(jax.random.key_data, keys[:2])]
    for saved in trees:
        save(path, saved, {})
        assert bits(load(path, saved)) == bits(saved)
        for other in trees:
            if other is not saved:
                refused(path, other, "lacks the arrays|takes")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_values_that_are_not_finite(tmp_path, value, dtype):
    array = np.array([[1, value]]).astype(dtype)
    path = craft(tmp_path / "x", {"['a']": array})
    refused(path, {"a": array}, r"\['a'\]: got values that are not finite")


def declared(dtype="U8", shape=(1,), offsets=(0, 1), **more):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}, **more}


# Headers, or how long they are said to be.
HOSTILE = {
    "a huge header": 2**63,
    "a header beyond the file": 1000,
    "a header of 100 MB": 10**8,
    "a huge shape": declared(shape=(2**40,), offsets=(0, 2**40)),
    "a shape that overflows": declared(shape=(2**62, 2**62), offsets=(0, 0)),
    "a shape with a zero": declared(shape=(0, 2**62), offsets=(0, 0)),
    "a negative shape": declared(shape=(-1,)),
    "a fractional shape": declared(shape=(1.5,)),
    "offsets beyond the file": declared(shape=(9,), offsets=(0, 9)),
    "offsets that overflow": declared(shape=(4,), offsets=(2**64 - 4, 2**64 - 1)),
    "offsets in reverse": declared(offsets=(1, 0)),
    "arrays that overlap": declared(b={"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}),
    "an unknown type": declared(dtype="O8"),
    "a type without numpy": declared(dtype="F8_E4M3"),
    "metadata that are no text": declared(__metadata__={"randq": 3}),
    "no metadata": declared(__metadata__=None),
    "nothing": {},
    "no object": [],
    "no text": b"\xff\xfe{}",
    "brackets": b'{"a":' + b"[" * 1_000_000,
    "a long name": {"x" * 1_000_000: declared(shape=(3,))["a"]},
    "lines": {"x\n" * 100: declared(shape=(3,))["a"]},
    "many metadata": {"__metadata__": {str(i): "" for i in range(200_000)}},
    "many dimensions": declared(shape=[1] * 1_000_000),
    "many arrays": {str(i): declared(shape=(0,), offsets=(0, 0))["a"] for i in range(50_000)},
}


def hostile(path, what, data):
    header = HOSTILE[what]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = header if isinstance(header, int) else len(text)
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("data", [b"", b"\0"])
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files(tmp_path, what, data):
    path = hostile(tmp_path / "x", what, data)
    refused(path, {"a": np.ones(1, np.uint8)}, "no file of randq")
    header_refused(path, "no file of randq")


RESET_PEAK = Path("/proc/self/clear_refs")


def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@pytest.mark.skipif(not RESET_PEAK.exists(), reason="Linux says what the peak was")
@pytest.mark.parametrize("what", [what for what in HOSTILE if what.startswith(("many", "a huge"))])
def test_memory_for_hostile_files(tmp_path, what):
    path = hostile(tmp_path / "x", what, b"\0")
    RESET_PEAK.write_text("5")
    before = memory("VmRSS")
    refused(path, {"a": np.ones(1, np.uint8)})
    assert memory("VmHWM") - before < 25 * path.stat().st_size + 2**23


def mutated(content, rng):
    """The file with something done to it at random."""
    content = bytearray(content)
    length = int.from_bytes(content[:8], "little")
    # Half of the time in the header, which is where the subtle things are.
    stop = len(content) if rng.random() < 0.5 else 8 + length
    at = int(rng.integers(stop))
    match rng.integers(7):
        case 0:
            content[at] ^= 1 << int(rng.integers(8))
        case 1:
            for i in rng.integers(stop, size=10):
                content[i] = int(rng.integers(256))
        case 2:
            del content[at:]
        case 3:
            content[at:at] = rng.bytes(int(rng.integers(1, 20)))
        case 4:
            del content[at : at + int(rng.integers(1, 20))]
        case 5:
            piece = content[at : at + 8]
            to = int(rng.integers(stop))
            content[to : to + len(piece)] = piece
        case 6:
            header = json.loads(content[8 : 8 + length])
            edit(header, rng)
            text = json.dumps(header).encode()
            content = len(text).to_bytes(8, "little") + text + content[8 + length :]
    return bytes(content)


def edit(header, rng):
    """Change one thing of a header; it stays good JSON."""
    names = sorted(header)
    name, other = (names[int(i)] for i in rng.integers(len(names), size=2))
    entry = header[name]
    key = sorted(entry)[int(rng.integers(len(entry)))]
    odd = [0, 1, -1, 2**31, 2**64, 1.5, "", "F32", "I32", "U32", None, [], [0, 4], [2, 2], {}, "1"]
    match rng.integers(5):
        case 0:
            header[name], header[other] = header[other], header[name]
        case 1:
            header[other] = entry
        case 2:
            del header[name]
        case 3:
            del entry[key]
        case 4:
            entry[key] = odd[int(rng.integers(len(odd)))]


def fuzz(path, seeds):
    good, like = path.read_bytes(), example()
    wanted = bits(like)
    refusals = 0
    for seed in seeds:
        path.write_bytes(mutated(good, np.random.default_rng(seed)))
        start = time.process_time()
        with suppress(StorageError):
            assert read_header(path) == HEADER, seed
        try:
            assert bits(load(path, like)) == wanted, seed
        except StorageError as error:
            refusals += str(error).startswith(f"{path}: ")
        assert time.process_time() - start < 1, seed
    assert refusals > 0.8 * len(seeds)


def test_mutations(path):
    fuzz(path, range(100))


@pytest.mark.slow
def test_more_mutations(path):
    fuzz(path, range(100, 1100))
