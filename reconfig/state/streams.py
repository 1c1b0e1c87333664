"""Saves and restores a script's random streams: python's, numpy's, torch's and the device's.

The streams belong to the script: wattmesh never draws from them or seeds them. A checkpoint stores
one set per *place* (data parallel rank, and stage, cp and tp rank within it).

    trainer.json    "streams": {"0-0-0-0": {"hashes": {stream: hash}, "states": ...}, ...}

In another layout a place continues with its last streams. A new place within a data parallel rank
uses the streams of that rank's first place, because peers that work on the same samples must draw
the same numbers. A new data parallel rank gets streams derived from the run's first place, or the
same ones if all data parallel ranks had equal streams. Streams of places that the layout does not
have are kept (resting) until their place is back.

Invariant: nothing is drawn twice; equal streams stay equal, different ones stay different.
"""

import hashlib
import json
import logging
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xxhash

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import plain

log = logging.getLogger(__name__)

KEY = "streams"

States = Mapping[str, bytes]
"""By stream ("python", "numpy", "torch", "cuda"), its state as bytes."""

Place = tuple[int, int, int, int]
"""Data parallel rank, stage, cp rank, tp rank."""

Table = Mapping[Place, Mapping[str, str]]
"""By place and stream, the state's hash, or `ALIKE`."""

FIRST: Place = (0, 0, 0, 0)

ALIKE = ""
"""Instead of a hash: this place's stream equals that of the first place of its data parallel rank;
or, for such a first place, that of the run's first place."""

_LARGEST = 1 << 20
"""Most bytes of one place's states; all four together are below 32 KiB."""


@dataclass(frozen=True, slots=True)
class Resting:
    """The streams of a place that the present layout does not have."""

    hashes: Mapping[str, str]
    states: States


@dataclass(frozen=True, slots=True)
class Streams:
    """One rank's streams from a checkpoint; empty before the first load.

    Attributes:
        own: this rank's streams.
        resting: on group rank 0, the resting streams, for the next checkpoint.
        digest: of the table in the checkpoint, equal on every rank.
        damage: streams of this rank that differ from the saved ones; "" for none.
    """

    own: States = field(default_factory=dict)
    resting: Mapping[Place, Resting] = field(default_factory=dict)
    digest: str = ""
    damage: str = ""


def now() -> dict[str, bytes]:
    """Return this process's present streams; a device's only if it is in use."""
    states = {
        "python": json.dumps(random.getstate()).encode(),
        "numpy": json.dumps(np.random.get_state(legacy=False), default=_as_list).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if _device_is_used():
        states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def set_to(states: States) -> None:
    """Set this process's streams."""
    setters: dict[str, Callable[[bytes], None]] = {
        "python": _set_python,
        "numpy": lambda state: np.random.set_state(json.loads(state)),
        "torch": lambda state: torch.set_rng_state(_as_tensor(state)),
        "cuda": lambda state: torch.cuda.set_rng_state(_as_tensor(state)),
    }
    for stream, state in states.items():
        if stream == "cuda" and not _device_is_used():
            continue
        try:
            setters[stream](state)
        except (ValueError, TypeError, RuntimeError) as error:
            # The script chose another kind of generator than the saved one.
            log.warning("the random stream of %s stays as the script set it: %s", stream, error)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the streams at the end of the block."""
    before = now()
    try:
        yield
    finally:
        set_to(before)


def place_of(layout: Layout, group_rank: int) -> Place:
    """Return the place of a rank; ranks are ordered by stage, then data, cp, tp."""
    rest, tp = divmod(group_rank, layout.tp)
    rest, cp = divmod(rest, layout.cp)
    stage, data = divmod(rest, layout.data_parallel)
    return data, stage, cp, tp


def folded(table: Table) -> dict[Place, dict[str, str]]:
    """Replace hashes by `ALIKE` where a stream equals that of the place above."""
    return {
        place: {
            stream: ALIKE
            if place != FIRST and value == _hash(table, _above(place), stream)
            else value
            for stream, value in hashes.items()
        }
        for place, hashes in table.items()
    }  # fmt: skip


def source(table: Table, place: Place, stream: str) -> Place | None:
    """Return the place in a folded table whose stream a place continues; None: a derived one."""
    found = table.get(place, {}).get(stream)
    if found:
        return place
    if place == FIRST:
        return None
    if found == ALIKE or not _leads(place):
        return source(table, _above(place), stream)
    others = [
        each[stream] for at, each in table.items() if at != FIRST and _leads(at) and stream in each
    ]
    return FIRST if others and all(each == ALIKE for each in others) else None


def derived(stream: str, first: bytes, data_rank: int) -> bytes:
    """Derive the stream of a new data parallel rank from the run's first place's."""
    name = f"wattmesh {stream} {data_rank} ".encode()
    seed = int.from_bytes(hashlib.sha256(name + first).digest()[:8], "big") >> 1
    if stream == "python":
        return json.dumps(random.Random(seed).getstate()).encode()
    if stream == "numpy":
        state = np.random.RandomState(np.random.MT19937(seed)).get_state(legacy=False)
        return json.dumps(state, default=_as_list).encode()
    device = "cuda" if stream == "cuda" else "cpu"
    made = torch.Generator(device).manual_seed(seed).get_state()
    return bytes(made.numpy().tobytes())


def seeded(states: States, seed: int) -> dict[str, bytes]:
    """Derive other streams from a script's own: equal ones stay equal, different ones different."""
    return {
        stream: derived(stream, f"seed {seed} ".encode() + state, 0)
        for stream, state in states.items()
    }


def own(
    streams: Streams, layout: Layout, group_rank: int, inside: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Encode this rank's part of trainer.json: its place's streams, and the resting ones."""
    states = now()
    mine = {stream: _digest(state) for stream, state in states.items()}
    told = {place_of(layout, group_rank): Resting(mine, states), **streams.resting}
    found = {}
    for place, each in told.items():
        name = "-".join(map(str, place))
        packed = _pack(each.states) if each.states else None
        found[name] = {
            "hashes": dict(each.hashes),
            "states": plain.encode(packed, f"{KEY}.{name}", inside),
        }
    return found


def given(
    trainer: Mapping[str, Any], layout: Layout, group_rank: int, value: Callable[[Any], Any]
) -> Streams:
    """Return a checkpoint's streams for this rank of a layout, or their damage.

    Args:
        trainer: the checkpoint's trainer.json.
        layout: the present layout.
        group_rank: this rank in it.
        value: decodes the JSON of `plain.encode`.
    """
    told = trainer.get(KEY)
    if not told:
        log.info("the checkpoint holds no random streams: they stay as the script set them")
        return Streams()
    try:
        return _given(told, layout, group_rank, value)
    except CheckpointDamaged as error:
        # Reported later with all ranks' findings, so that all ranks take the same path.
        return Streams(damage=str(error))


def _given(
    told: Mapping[str, Any], layout: Layout, group_rank: int, value: Callable[[Any], Any]
) -> Streams:
    """Decode the streams of this rank.

    Raises:
        CheckpointDamaged: they differ from the saved ones.
    """
    packed = {_place(name): each["states"] for name, each in told.items()}
    table = folded({_place(name): each["hashes"] for name, each in told.items()})
    read: dict[Place, States] = {}

    def state(place: Place, stream: str) -> bytes:
        if place not in read:
            read[place] = _unpack(value(packed[place]))
        found = read[place].get(stream, b"")
        if _digest(found) != table[place][stream]:
            raise CheckpointDamaged(
                f"the {stream} random stream of data parallel rank {place[0]} is not what was saved"
            )
        return found

    def gone_on(place: Place, stream: str) -> bytes:
        origin = source(table, place, stream)
        if origin is not None:
            return state(origin, stream)
        return derived(stream, state(FIRST, stream), place[0])

    mine = place_of(layout, group_rank)
    here = {place_of(layout, rank) for rank in range(layout.world_size)}
    idle = [] if group_rank else [place for place in table if place not in here]
    return Streams(
        own={stream: gone_on(mine, stream) for stream in table[FIRST]},
        resting={
            place: Resting(
                table[place],
                {stream: state(place, stream) for stream, hash_ in table[place].items() if hash_},
            )
            for place in idle
        },
        digest=_digest(json.dumps(sorted(table.items())).encode()),
    )


def _device_is_used() -> bool:
    """Tell whether the script uses a device; reading its stream would initialise it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _leads(place: Place) -> bool:
    """Tell whether a place is the first of its data parallel rank."""
    return not any(place[1:])


def _above(place: Place) -> Place:
    """The place that it may be `ALIKE` to: the first of its data rank, or of the run."""
    return FIRST if _leads(place) else (place[0], 0, 0, 0)


def _hash(table: Table, place: Place, stream: str) -> str | None:
    """The hash of a place's stream, resolving `ALIKE`."""
    found = table.get(place, {}).get(stream)
    return _hash(table, _above(place), stream) if found == ALIKE and place != FIRST else found


def _place(name: str) -> Place:
    data, stage, cp, tp = map(int, name.split("-"))
    return data, stage, cp, tp


def _digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _pack(states: States) -> bytes:
    text = json.dumps({stream: state.hex() for stream, state in states.items()})
    return zlib.compress(text.encode(), 1)


def _unpack(data: bytes) -> States:
    try:
        text = zlib.decompressobj().decompress(data, _LARGEST)
        return {stream: bytes.fromhex(state) for stream, state in json.loads(text).items()}
    except (zlib.error, ValueError, AttributeError, TypeError) as error:
        raise CheckpointDamaged(f"a random stream cannot be read ({error})") from error


def _as_list(value: Any) -> Any:
    """Encode the array in numpy's state for JSON."""
    return value.tolist()


def _as_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _set_python(state: bytes) -> None:
    version, numbers, gauss = json.loads(state)
    random.setstate((version, tuple(numbers), gauss))
