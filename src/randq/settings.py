"""Settings records as plain JSON data, and back. All that is wrong with the data is said at once.

Where the type of a setting leaves a choice of records, the key "kind" says which one it is. Names
are looked up in registries and type hints alone: data can import nothing and call nothing.
"""

import re
import reprlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from randq.config import one_of, override, require
from randq.envs import ENVIRONMENTS, Environment
from randq.posteriors import FAMILIES, Family

T = TypeVar("T")

KINDS: dict[type, Mapping[str, type]] = {Family: FAMILIES, Environment: ENVIRONMENTS}
"""What may stand where a type is only the base of it, by name."""

MAX_PROBLEMS, MAX_ENTRIES, MAX_LETTERS = 100, 100_000, 80
"""What is told of problems, read of a list, and shown of a word: hostile data cost no time."""

TAKES: dict[Any, str] = {
    NoneType: "null",
    bool: "true or false",
    int: "an integer (of at most 64 bits)",
    float: "a finite number",
    str: "a string",
    list: f"a list (of at most {MAX_ENTRIES} entries)",
    dict: "an object",
}


def to_json(record: Any) -> dict[str, Any]:
    """A record as plain data."""
    return _to_json(type(record), record, "")


def from_json(cls: type[T], data: Any, where: str = "") -> T:
    """The record that such data stand for, or a ValueError with a line for each problem.

    `where` is the dotted path of the data, with which the lines begin.
    """
    reader = _Reader()
    record = reader.value(cls, data, where)
    reader.finish()
    return record


def change(record: T, changes: Mapping[str, Any]) -> T:
    """A copy with some settings changed, by their dotted names; values may be plain or records."""
    records = {name: value for name, value in changes.items() if is_dataclass(value)}
    data = to_json(override(record, records))
    for name in changes.keys() - records.keys():
        *path, last = name.split(".")
        place: Any = data
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        inside = ".".join(path)
        require(
            isinstance(place, dict), name, changes[name], f"nothing, as {inside} has no settings"
        )
        place[last] = _lists(changes[name])
    return from_json(type(record), data)


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _to_json(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kinds, hints = _kinds(hint), get_type_hints(type(value))
        names = [name for name, cls in kinds.items() if cls is type(value)]
        require(bool(names), where, value, "one of " + ", ".join(kinds))
        data = {"kind": names[0]} if len(kinds) > 1 else {}
        for name in _fields(type(value)):
            data[name] = _to_json(hints[name], getattr(value, name), _path(where, name))
        return data
    if isinstance(value, tuple):
        arm = next((arm for arm in _arms(hint) if _shape(arm) is list), tuple[Any, ...])
        entries = zip(_entries(arm, len(value)), value, strict=True)
        return [_to_json(entry, x, f"{where}[{i}]") for i, (entry, x) in enumerate(entries)]
    plain = value is None or isinstance(value, bool | int | float | str)
    require(plain, where, value, "a record, a tuple, a number, a string, a bool or None")
    return value


class _Reader:
    """Makes values of data, and collects the problems. After one, what it returns is nonsense."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def finish(self) -> None:
        if self.problems:
            raise ValueError("\n".join(self.problems))

    def refuse(self, problem: str) -> None:
        self.problems.append(problem)
        if len(self.problems) == MAX_PROBLEMS:
            self.problems.append("and perhaps more")
            self.finish()

    def word(self, where: str, got: object, options: Iterable[str]) -> None:
        try:
            one_of(where, got if _is_short(got) else _brief(got), options)
        except ValueError as error:
            self.refuse(str(error))

    def value(self, hint: Any, data: Any, where: str) -> Any:
        """What the data stand for, as a value of this type."""
        arm = next((arm for arm in _arms(hint) if _fits(arm, data)), None)
        if arm is None:
            self.refuse(f"{where or 'settings'}: got {_brief(data)}, takes {_takes(hint)}")
        elif get_origin(arm) is Literal:
            self.word(where, data, get_args(arm))
        elif isinstance(data, list):
            entries = zip(_entries(arm, len(data)), data, strict=True)
            return tuple(self.value(e, x, f"{where}[{i}]") for i, (e, x) in enumerate(entries))
        elif isinstance(data, dict):
            return self.record(_kinds(hint), data, where)
        return float(data) if arm is float else data

    def record(self, kinds: dict[str, type], data: dict[Any, Any], where: str) -> Any:
        """The record of one of these kinds that an object stands for."""
        before = len(self.problems)
        kind = next(iter(kinds))
        if len(kinds) > 1:
            kind = self.value(Literal[*kinds], data.get("kind"), _path(where, "kind"))
            data = {key: value for key, value in data.items() if key != "kind"}
        if len(self.problems) > before:
            return None
        cls, refused, values = kinds[kind], set(), {}
        known, hints = _fields(cls), get_type_hints(cls)
        for key in data:
            if key not in known:
                self.word(_path(where, key), key, known)
        for name, field in known.items():
            path, so_far = _path(where, name), len(self.problems)
            if name in data:
                values[name] = self.value(hints[name], data[name], path)
            elif field.default is MISSING and field.default_factory is MISSING:
                self.refuse(f"{path}: got nothing, takes {_takes(hints[name])}")
            if len(self.problems) > so_far:
                values.pop(name, None)
                refused.add(name)
        self.ranges(cls, values, refused, where)
        return cls(**values) if len(self.problems) == before else None

    def ranges(self, cls: Any, values: dict[str, Any], refused: set[str], where: str) -> None:
        """Let the record itself check its values.

        It stops at the first bad one; that is put back to its default and the record asked again.
        A complaint that mentions a refused setting may only be about its default, and has to wait.
        """
        known = _fields(cls)
        made = {n: f() for n, x in known.items() if (f := x.default_factory) is not MISSING}
        while True:
            probe = object.__new__(cls)  # what is not set is the default, a class attribute
            for name, value in {**made, **values}.items():
                object.__setattr__(probe, name, value)
            try:
                getattr(probe, "__post_init__", lambda: None)()
            except AttributeError:  # it asked for a setting that is missing
                return
            except ValueError as error:
                setting, _, complaint = str(error).partition(": ")
                first, name = setting.partition(".")[0], setting.rpartition(".")[2]
                words = set(re.findall(r"\w+", complaint.rpartition(", takes ")[2]))
                if not words & refused:
                    inside = name if name in known else setting if first in known else None
                    path = f"{where}.{inside}".lstrip(".")
                    whole = f"{where or 'settings'}: {error}"
                    self.refuse(f"{path}: {complaint}" if inside else whole)
                culprits = values.keys() & {name, first} or values.keys() & words
                if not culprits:
                    return
                refused |= culprits
                values = {name: values[name] for name in values.keys() - culprits}
            else:
                return


def _fields(cls: Any) -> dict[str, Field[Any]]:
    return {field.name: field for field in fields(cls) if field.init}


def _arms(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the only one."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _kinds(hint: Any) -> dict[str, type]:
    """The records that may stand here, by name."""
    kinds: dict[str, type] = {}
    for arm in _arms(hint):
        if (base := get_origin(arm) or arm) in KINDS:
            kinds.update(KINDS[base])
        elif isinstance(arm, type) and is_dataclass(arm):
            kinds[arm.__name__] = arm
    return kinds


def _shape(arm: Any) -> Any:
    """What JSON has for a type."""
    shape = {Literal: str, tuple: list}.get(get_origin(arm), dict if _kinds(arm) else arm)
    if shape not in TAKES:
        raise TypeError(f"settings cannot have the type {arm}")
    return shape


def _entries(arm: Any, length: int) -> tuple[Any, ...]:
    """The types of the entries of a tuple."""
    entries = get_args(arm)
    return entries[:1] * length if entries[-1] is ... else entries


def _fits(arm: Any, data: Any) -> bool:
    """Whether data are of a type, on the surface."""
    shape = _shape(arm)
    if isinstance(data, bool):
        return shape is bool
    if shape is int:
        return isinstance(data, int) and abs(data) < 2**63
    if shape is float:
        return isinstance(data, int | float) and abs(data) <= sys.float_info.max
    if shape is list:
        count = len(data) if isinstance(data, list) else -1
        return 0 <= count <= MAX_ENTRIES and len(_entries(arm, count)) == count
    return isinstance(data, shape)


def _takes(hint: Any) -> str:
    """What a setting of this type takes, in words."""
    words, kinds = [], _kinds(hint)
    for arm in _arms(hint):
        shape, args = _shape(arm), get_args(arm)
        if get_origin(arm) is Literal:
            words.append("one of " + ", ".join(args))
        elif shape is list and args[-1] is not ...:
            words.append(f"a list of {len(args)} entries")
        elif shape is dict and len(kinds) > 1:
            words.append('an object whose "kind" is one of ' + ", ".join(kinds))
        else:
            words.append(TAKES[shape])
    return " or ".join(dict.fromkeys(words))


def _path(where: str, key: object) -> str:
    name = key if _is_short(key) and key.isidentifier() else _brief(key)
    return f"{where}.{name}" if where else name


def _is_short(data: object) -> TypeGuard[str]:
    return isinstance(data, str) and len(data) <= MAX_LETTERS


def _brief(data: object) -> str:
    """The data in a few letters."""
    if isinstance(data, dict):
        return "an object"
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 1, MAX_LETTERS, MAX_LETTERS
    try:
        return brief.repr(data)
    except ValueError:  # Python writes no integer of thousands of digits
        return "a huge integer"
