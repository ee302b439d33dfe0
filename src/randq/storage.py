"""Arrays and JSON in one file, in the format of safetensors: to read one runs no code.

Two checksums cover all of it. `arrays` is that of the arrays with their names, types and shapes;
`sha256` is that of everything else, so that a header can be trusted before any array is read.
"""

import hashlib
import json
import os
import reprlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialised

from randq.config import require
from randq.types import PyTree
from randq.version import VERSION

FORMAT = 1
TEMPORARY = ".tmp-"
"""How the name of a file begins that is not complete."""
METADATA = {"randq", "format", "header", "arrays", "sha256"}
ARRAYS = (jax.Array, np.ndarray, np.generic)
MAX_HEADER = 2**22
"""Bytes of JSON and names in a file. To read them takes many times as much memory."""

TYPES = {
    **{"bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64"},
    **{"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "complex64": "C64"},
    **{"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"},
}
"""What can be stored, and what safetensors calls it."""


class StorageError(ValueError):
    """A file that cannot be written, or does not hold what it should."""


def save(
    path: Path,
    tree: PyTree,
    header: dict[str, Any],
    may_be_nan: Callable[[str], bool] = lambda name: False,
) -> None:
    """Put a tree of arrays and some JSON into a file. If that fails, an older file is untouched.

    All numbers must be finite but those of arrays that, by their name, may be otherwise.
    """
    arrays = {name: _plain(leaf) for name, leaf in _named(tree, *ARRAYS).items()}
    for name, array in arrays.items():
        require(array.dtype.name in TYPES, name, array.dtype.name, "one of " + ", ".join(TYPES))
        ok = may_be_nan(name) or _is_finite(array)
        require(ok, name, "values that are not finite", "finite ones")
    metadata = {
        "randq": VERSION,
        "format": str(FORMAT),
        "header": json.dumps(header, allow_nan=False),
        "arrays": _digest(arrays),
    }
    content = _in_order(serialised(arrays, {**metadata, "sha256": _seal(metadata)}))
    size = int.from_bytes(content[:8], "little")
    require(size <= MAX_HEADER, "header", size, f"at most {MAX_HEADER} bytes, names included")
    write(path, content)


def write(path: Path, content: bytes) -> None:
    """Make a file, whole or not at all: it gets its name when it is safely on the disk."""
    new = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        try:
            with new.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    with suppress(OSError):  # not every system can; the file is in its place all the same
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def made_by(path: Path) -> str:
    """Words on which version made a file, where that is not this one."""
    with _opened(path) as file:
        return _made(_metadata(path, file))


def _made(metadata: Mapping[str, str]) -> str:
    version = metadata["randq"]
    return "" if version == VERSION else f"; made by randq {_brief(version)}, this is {VERSION}"


def read_header(path: Path) -> dict[str, Any]:
    """The JSON that was saved with the arrays, without them."""
    with _opened(path) as file:
        metadata = _metadata(path, file)
    try:
        header = json.loads(metadata["header"])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise StorageError(f"{path}: its header is no JSON object")
    return header


def load(
    path: Path, like: PyTree, may_be_nan: Callable[[str], bool] = lambda name: False
) -> PyTree:
    """The arrays of a file in a tree like this one, which has the types and shapes to expect."""
    wanted = _named(like, jax.Array, np.ndarray, jax.ShapeDtypeStruct)
    with _opened(path) as file:
        metadata = _metadata(path, file)
        digest, names, made = metadata["arrays"], set(file.keys()), _made(metadata)
        if lacking := wanted.keys() - names:
            raise StorageError(f"{path}: lacks the arrays {_brief(sorted(lacking))}{made}")
        if unknown := names - wanted.keys():
            raise StorageError(f"{path}: has the unknown arrays {_brief(sorted(unknown))}{made}")
        for name, leaf in wanted.items():
            plain = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
            takes = TYPES.get(plain.dtype.name), list(plain.shape)
            got = file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()
            if got != takes:
                wrong = f"{name}: got {_brief(got)}, takes {_brief(takes)}"
                raise StorageError(f"{path}: {wrong}{made}")
        arrays = {name: file.get_tensor(name) for name in wanted}
    if _digest(arrays) != digest:
        raise StorageError(f"{path}: is damaged (its arrays do not match their checksum)")
    for name, array in arrays.items():
        if not may_be_nan(name) and not _is_finite(array):
            raise StorageError(f"{path}: {name}: got values that are not finite")
    leaves = [_restored(leaf, arrays[name]) for name, leaf in wanted.items()]
    for (name, leaf), restored in zip(wanted.items(), leaves, strict=True):
        if restored.dtype != leaf.dtype:
            raise StorageError(f"{path}: {name}: got {leaf.dtype}, which takes jax_enable_x64")
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def digest(tree: PyTree) -> str:
    """A checksum of the arrays of a tree, their names, types and shapes."""
    named = _named(tree, *ARRAYS)
    return _digest({name: _plain(leaf) for name, leaf in named.items()})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, if safetensors can make sense of it."""
    try:
        if path.exists() and not path.is_file():
            raise StorageError(f"{path}: is not a file")
        with path.open("rb") as start:
            size = int.from_bytes(start.read(8), "little")
        if size > MAX_HEADER:
            raise StorageError(f"{path}: is no file of randq (a header of {size} bytes)")
        with safe_open(path, framework="np", backend="pread") as file:
            yield file
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except SafetensorError as error:
        raise StorageError(
            f"{path}: is damaged, or no file of randq ({_brief(str(error))})"
        ) from error


def _metadata(path: Path, file: Any) -> dict[str, str]:
    """All that a file holds beside its arrays, checked."""
    metadata = file.metadata() or {}
    if "randq" not in metadata:
        raise StorageError(f"{path}: is no file of randq")
    if metadata.get("format") != str(FORMAT):
        made = (
            f"made by randq {_brief(metadata['randq'])} in format {_brief(metadata.get('format'))}"
        )
        raise StorageError(f"{path}: {made}; randq {VERSION} reads format {FORMAT}")
    if metadata.keys() != METADATA or metadata["sha256"] != _seal(metadata):
        raise StorageError(f"{path}: is damaged (its header does not match its checksum)")
    return metadata


def _in_order(content: bytes) -> bytes:
    """A file with its names in order, so that the same content is always the same file."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[start:]


def _named(tree: PyTree, *kinds: type) -> dict[str, Any]:
    """The arrays of a tree by name. That of a random key says which kind of key it is."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        require(isinstance(leaf, kinds), name, leaf, "an array")
        name = f"{name}:{leaf.dtype}" if _is_key(leaf) else name
        require(name not in named, name, "two arrays of this name", "one")
        named[name] = leaf
    return named


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    """An array as bytes in their natural order."""
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=False)


def _restored(like: Any, array: np.ndarray) -> Any:
    if isinstance(like, np.ndarray):
        return array
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), dtype=like.dtype)
    return jnp.asarray(array)


def _is_finite(array: np.ndarray) -> bool:
    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(np.isfinite(array).all())


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _seal(metadata: Mapping[str, str]) -> str:
    sealed = sorted((name, text) for name, text in metadata.items() if name != "sha256")
    return hashlib.sha256(json.dumps(sealed).encode()).hexdigest()


def _brief(got: object) -> str:
    """In a few words, on one line."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 100
    return brief.repr(got)
