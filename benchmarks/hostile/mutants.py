"""Mutants of honest checkpoints, structure-aware: each knows the format that it spoils.

A mutant is named by two numbers, seed and number; the same two make the same bytes again.

    a value in a pickle or JSON document is replaced, removed, doubled or swapped for another one
    numbers in the columns of an index are replaced by extreme ones
    whatever is sealed is sealed again, so that what lies behind the seal is reached
    bytes are flipped, cut off, put in; files become links, pipes, folders, holes, or go
"""

import copy
import dataclasses
import hashlib
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

EXTREMES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 255, 2**31, 2**48 - 1, 2**48, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63),
    10**400, 0.5, float("nan"), float("inf"), -1e308, "", "a", ".", "..", "../x", "/etc/passwd",
    "a\0b", "\ud800", "\x1b[31m", "\u202ereversed", "x" * 5000, "state." * 50, b"", b"\xff" * 40,
    [], {}, (), [[]], {"": ""}, [[[[[[[[]]]]]]]], {"a": {"a": {"a": {}}}},
)  # fmt: skip
"""What values become; JSON leaves out what it has no word for."""

NUMBERS = (-1, 0, 1, 2, 7, 2**31, 2**48, 2**58, 2**61, 2**63 - 1, -(2**63))
_SMALL = ("index.json", "index.safetensors", "trainer.json")
Chance = random.Random


def spoil(folder: Path, seed: int, number: int) -> str:
    """Make the checkpoint in `folder`, a copy of an honest one, hostile; say how."""
    chance = Chance(f"{seed}:{number}")
    told = [_once(folder, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    return ", ".join(told)


def _once(folder: Path, chance: Chance) -> str:
    files = sorted(each for each in folder.rglob("*") if _may_change(each))
    if not files:
        return "nothing is left"
    path = chance.choice(files)
    name = str(path.relative_to(folder))
    ways: list[Callable[[Path, Chance], None]] = [_bytes, _bytes]
    if path.name in ("manifest.json", *_SMALL):
        ways += [_document if path.suffix == ".json" else _columns] * 8
    if path.name == ".metadata":
        ways += [_pickle] * 8
    if path.suffix == ".pt":
        ways += [_archive] * 8
    ways.append(_file)
    way = chance.choice(ways)
    way(path, chance)
    if way is not _file and (folder / "manifest.json").is_file() and chance.random() < 0.9:
        seal_again(folder)
    return f"{way.__name__.strip('_')} of {name}"


def _may_change(path: Path) -> bool:
    """Whether it is a file, and no hole that an earlier change made."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 26


def seal_again(folder: Path) -> None:
    """Make manifest.json and COMMIT fit whatever lies there, where the manifest can be read."""
    path = folder / "manifest.json"
    try:
        document = json.loads(path.read_bytes() if _may_change(path) else b"")
        for name in _SMALL:
            if not _may_change(folder / name):
                continue
            data = (folder / name).read_bytes()
            line = {"size": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
            if type(document["files"][name]) is dict:
                document["files"][name] = line
        path.write_bytes(json.dumps(document, sort_keys=True).encode())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    if _may_change(path):
        sealed = hashlib.sha256(path.read_bytes()).hexdigest()
        if _may_change(folder / "COMMIT"):
            (folder / "COMMIT").write_text(sealed)


def _document(path: Path, chance: Chance) -> None:
    try:
        value = json.loads(path.read_bytes())
        path.write_text(json.dumps(changed(value, chance)))
    except (ValueError, TypeError):
        _bytes(path, chance)


def _columns(path: Path, chance: Chance) -> None:
    try:
        columns = load(path.read_bytes())
    except (SafetensorError, KeyError):
        _bytes(path, chance)
        return
    name = chance.choice(sorted(columns) or [""])
    column = columns.get(name, np.zeros((0,), np.int64))
    way = chance.randrange(6)
    if way == 0:
        columns.pop(name, None)
    elif way == 1:
        columns[name] = column.astype(chance.choice((np.int32, np.float64, np.uint8)))
    elif way == 2:
        columns[name] = column[: len(column) // 2]
    elif way == 3:
        columns[name] = column.reshape(-1)
    elif column.size:
        flat = column.copy().reshape(-1)
        for _ in range(chance.randint(1, 4)):
            flat[chance.randrange(len(flat))] = chance.choice(NUMBERS)
        columns[name] = flat.reshape(column.shape)
    path.write_bytes(save(columns))


def _pickle(path: Path, chance: Chance) -> None:
    try:
        value = changed(pickle.loads(path.read_bytes()), chance)
        path.write_bytes(pickle.dumps(value, chance.choice((2, 4, 5))))
    except Exception:
        _bytes(path, chance)


def _archive(path: Path, chance: Chance) -> None:
    try:
        value = torch.load(path, weights_only=False)
        torch.save(changed(value, chance), path)
    except Exception:
        _bytes(path, chance)


def _bytes(path: Path, chance: Chance) -> None:
    data = bytearray(path.read_bytes())
    way = chance.randrange(5)
    at = chance.randrange(len(data) + 1)
    if way == 0 or not data:
        data[at:at] = chance.randbytes(chance.randint(1, 8))
    elif way == 1:
        del data[at:]
    elif way == 2:
        del data[at : at + chance.randint(1, 16)]
    elif way == 3:
        number = chance.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
        data[at : at + 8] = struct.pack("<Q", number)
    else:
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def _file(path: Path, chance: Chance) -> None:
    way = chance.randrange(8)
    size = path.stat().st_size
    path.unlink()
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.symlink_to(chance.choice(("/dev/zero", "/etc/passwd", path.name, "..")))
    elif way == 2:
        path.mkdir()
    elif way == 3:
        path.touch()
        os.truncate(path, chance.choice((size, 1 << 30, 1 << 40)))
    elif way == 4:
        shutil.move(_made(path), path.with_name(chance.choice(("x", "²", "\udcff", "a\nb"))))
    elif way == 5:
        path.touch()


def _made(path: Path) -> Path:
    path.touch()
    return path


def changed(value: Any, chance: Chance) -> Any:
    """A copy of a nest of lists, dicts and objects, changed in one place."""
    paths = list(_paths(value, ()))
    path = chance.choice(paths)
    way = chance.randrange(8)
    if way == 0:
        return _at(value, path, lambda _: _node(value, chance.choice(paths)))
    if way == 1 and path:
        return _at(value, path[:-1], lambda inside: _without(inside, path[-1]))
    if way == 2:
        return _at(value, path, lambda inside: [inside] * chance.choice((1, 2, 50)))
    return _at(value, path, lambda _: copy.deepcopy(chance.choice(EXTREMES)))


Step = tuple[str, Any]


def _inside(value: Any) -> list[tuple[Step, Any]]:
    """What a value holds, each with the step that leads there."""
    if isinstance(value, dict):
        keys = [(("key", key), key) for key in value]
        return [*keys, *((("item", key), each) for key, each in value.items())]
    if isinstance(value, list | tuple):
        return [(("place", at), each) for at, each in enumerate(value)]
    if dataclasses.is_dataclass(value) or type(value).__name__ == "fragment_address":
        return [(("field", name), each) for name, each in vars(value).items()]
    return []


def _paths(value: Any, path: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    yield path
    for step, each in _inside(value):
        yield from _paths(each, (*path, step)) if step[0] != "key" else ((*path, step),)


def _node(value: Any, path: tuple[Step, ...]) -> Any:
    for step in path:
        value = dict(_inside(value))[step] if step[0] != "key" else step[1]
    return value


def _at(value: Any, path: tuple[Step, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of `value` with the node at `path` changed."""
    if not path:
        return change(value)
    (kind, where), *rest = path
    if kind == "key":
        new = change(where)
        try:
            return {(new if key == where else key): each for key, each in value.items()}
        except TypeError:
            return value
    inside = _at(dict(_inside(value))[kind, where], tuple(rest), change)
    if kind == "item":
        return {key: (inside if key == where else each) for key, each in value.items()}
    if kind == "place":
        items = [inside if at == where else each for at, each in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    made = copy.copy(value)
    object.__setattr__(made, where, inside)
    return made


def _without(value: Any, step: Step) -> Any:
    kind, where = step
    if kind in ("item", "key"):
        return {key: each for key, each in value.items() if key != where}
    if kind == "place":
        return [each for at, each in enumerate(value) if at != where]
    return None
