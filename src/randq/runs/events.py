"""TensorBoard's event files, for scalars: records of the TFRecord format with protocol buffers.

A record is its length, a checksum of that, the data, and a checksum of those. The data are an Event
(wall_time = 1: double, step = 2: int64, file_version = 3: string, summary = 5), whose Summary has
values (1) of a tag (1: string) and a number (2: float).
"""

import struct
from collections.abc import Mapping
from pathlib import Path

from randq.storage import StorageError

POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def scalars(step: int, wall_time: float, values: Mapping[str, float]) -> bytes:
    """One event with the numbers of a step."""
    summary = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
        for tag, value in values.items()
    )
    return _record(_time(wall_time) + b"\x10" + _varint(step) + _bytes(5, summary))


def opening(wall_time: float) -> bytes:
    """What a file begins with."""
    return _record(_time(wall_time) + _bytes(3, b"brain.Event:2"))


def append(path: Path, events: bytes) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(events)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _time(seconds: float) -> bytes:
    return b"\x09" + struct.pack("<d", seconds)


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
