"""Seeded mutations of bytes, lines and plain values; an input can be recreated from its number."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

#: Bytes that parsers often mishandle: ends of ranges, separators, magic numbers, incomplete characters.
BYTES = (
    *(
        b"",
        b"\0",
        b"\xff",
        b"\x80",
        b"\xc3",
        b"\xef\xbb\xbf",
        b"\r\n",
        b"\n",
        b"\t",
        b'"',
        b"'",
        b"#",
        b"=",
        b":",
        b",",
    ),
    *(b"[", b"]", b"{", b"}", b"(", b".", b"-", b"+", b"0", b"1", b"-1", b"1e999", b"nan", b"-inf", b"9" * 30),
    *(
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\xff" * 8,
        b"\0" * 8,
        b"PK\x03\x04",
        b"SQLite format 3\0",
        b"\x80\x02",
    ),
)
#: Values to put in place of others.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.0, -0.0, 0.5, 1.5, -1e-300, 1e308),
    *(
        math.nan,
        math.inf,
        -math.inf,
        "",
        " ",
        "a",
        "adam",
        "shb",
        "lr",
        "beta",
        "../up",
        "/etc/passwd",
        "a\0b",
        "\ud7ff",
    ),
    *("train_loss", "valid_loss", "s_min", "x" * 5000, "💥", "<script>", [], {}, [[]], [1, "a"], [0.1, 0.1], {"a": {}}),
    *([True], [1e-3, 1e-2], [None], {"lr": [0.1]}, {"lr": 0.1}, ["lr"], ["gamma"], [0, 1, 2], list(range(50))),
)


def of_bytes(rng: Random, data: bytes, words: Sequence[bytes] = BYTES) -> bytes:
    """Apply one to eight small changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        data = rng.choice(_CHANGES)(rng, data, words)
    return data


def _place(rng: Random, data: bytes) -> int:
    """Return a position, more often near an end, where formats have headers and indexes."""
    edge = min(len(data), 64)
    near = (rng.randrange(edge + 1), len(data) - rng.randrange(edge + 1))
    return rng.choice((*near, rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))


def _flip(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = min(_place(rng, data), len(data) - 1)
    return data if at < 0 else data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _overwrite(rng: Random, data: bytes, words: Sequence[bytes]) -> bytes:
    at, word = _place(rng, data), rng.choice(words)
    return data[:at] + word + data[at + len(word) :]


def _insert(rng: Random, data: bytes, words: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.choice((rng.choice(words), rng.randbytes(rng.randrange(1, 9)))) + data[at:]


def _delete(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 1, 2, 4, 8, 64, 512)) :]


def _cut(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: _place(rng, data)]


def _repeat(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, length = _place(rng, data), rng.choice((1, 4, 16, 64))
    return data[: at + length] + data[at : at + length] * rng.choice((1, 1, 3, 100)) + data[at + length :]


def _swap(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    a, b = sorted((_place(rng, data), _place(rng, data)))
    length = rng.choice((1, 4, 16))
    return data[:a] + data[b : b + length] + data[a + length : b] + data[a : a + length] + data[b + length :]


_CHANGES: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _flip, _overwrite, _overwrite, _insert, _insert, _delete, _delete, _cut, _repeat, _swap),
)


def of_lines(rng: Random, data: bytes, words: Sequence[bytes] = BYTES) -> bytes:
    """Move, duplicate or delete lines; sometimes change bytes as well."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        i, j = rng.randrange(len(lines) + 1), rng.randrange(len(lines) + 1)
        taken = lines[i : i + 1] or [rng.choice(words)]
        kind = rng.randrange(3)
        lines = [*lines[:j], *taken, *lines[j:]] if kind == 0 else lines[:i] + lines[i + 1 :]
        if kind == 1 and lines:
            lines[rng.randrange(len(lines))] = taken[0]
        lines = lines or [b""]
    whole = b"\n".join(lines)
    return whole if rng.random() < 0.7 else of_bytes(rng, whole, words)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all items inside nested lists and tables."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *places(item, (*path, key)))]


def of_values(rng: Random, value: dict[str, Any]) -> dict[str, Any]:
    """Apply one to four structural changes: replace, move or delete values, misspell keys."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        known = places(value)
        if not known:
            return value
        *above, key = rng.choice(known)
        at: Any = value
        for step in above:
            at = at[step]
        kind = rng.randrange(6)
        if kind <= 2:
            at[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 3:
            del at[key]
        elif kind == 4:
            at[key] = copy.deepcopy(_found(value, rng.choice(known)))
        elif isinstance(at, dict):
            at[rng.choice((f"{key}s", key[:-1], key.upper(), "", f"{key}\0", "scales", "name"))] = at.pop(key)
        else:
            at.insert(rng.randrange(len(at) + 1), copy.deepcopy(rng.choice(VALUES)))
    return value


def _found(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def toml(value: Any) -> str:
    """Format a value as inline TOML; a value that TOML cannot represent becomes invalid TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(value)  # null is not TOML


def document(value: dict[str, Any]) -> bytes:
    """Format a table as a TOML file."""
    return "\n".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()).encode("utf-8", "replace")
