"""The layout of a job: degrees of parallelism, and the ranks that take part.

Names and rules follow torchtitan's ParallelDims. "axis" is of the mesh, "dim" is of a tensor.
Torch-free, so that the daemon can read what the hook writes.

Invariant: `dp_replicate * dp_shard * cp * tp * pp == world_size`; `ep` divides
`dp_shard * cp * tp` and is not a factor of the world size.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from wattmesh.errors import InputInvalid

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""The axes of the dense mesh, outermost first."""

_SHORT = {
    "dp_replicate": "rep",
    "dp_shard": "dp",
    "cp": "cp",
    "tp": "tp",
    "pp": "pp",
    "ep": "ep",
}

_WORDS = {word: name for name, word in _SHORT.items()}
_LATER = {"cp_method": "gather", "cp_layers": "", "ep_bottleneck": 1}
"""Fields that a layout did not have from the first, and what leaves it as it was then."""

_DEGREE = re.compile(rf"({'|'.join(sorted(_WORDS))})([0-9]{{1,8}})\s*")

_CP_WORD = re.compile(r"([1-9][0-9]{0,6})(?:x([1-9][0-9]{0,3}))?")
MOST_LAYERS = 4096

MOST = 2**20
"""Highest degree: a million ranks."""

SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
CP_METHODS = ("gather", "ring", "ulysses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The degrees of parallelism of a job, with options that change memory and speed.

    Attributes:
        pp, dp_replicate, dp_shard, cp, tp: factors of the world size, each 1 to 2^20.
        ep: expert parallel degree, carved out of dp_shard * cp * tp.
        schedule: pipeline schedule; read only when pp > 1.
        micro_batch: samples per microbatch; 0 leaves the choice to the trainer.
        recompute: activation checkpointing on.
        cp_method: how ranks of a context group attend to each other's positions; read only when
            cp > 1.
        cp_layers: by layer, over how many ranks of a context group its attention is, each a
            divisor of cp: `4 1 1 4`, or `4x8 1x24` for 8 layers over 4 and 24 over 1; "": all over
            cp. Where they are fewer, the ranks deal the samples of a microbatch among them instead.
        ep_bottleneck: how many times fewer features of a token are sent to its experts, by maps
            that the model learns; 1: tokens are sent whole. It changes what is computed: a point
            of another one than the reference's is of class `statistical` at best.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    schedule: str = "1F1B"
    micro_batch: int = 0
    recompute: bool = False
    cp_method: str = "gather"
    cp_layers: str = ""
    ep_bottleneck: int = 1

    def __post_init__(self) -> None:
        """Refuse degrees that no mesh can have, with the rule and the numbers."""
        for name in (*AXES, "ep", "ep_bottleneck"):
            degree = getattr(self, name)
            if isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= MOST:
                raise InputInvalid(
                    f"layout: {name} = {degree!r:.40} must be a whole number >= 1, at most {MOST}"
                )
        carved = self.dp_shard * self.cp * self.tp
        if carved % self.ep:
            raise InputInvalid(
                f"layout: ep = {self.ep} must divide dp_shard * cp * tp = "
                f"{self.dp_shard} * {self.cp} * {self.tp} = {carved}"
            )
        if self.schedule not in SCHEDULES:
            raise InputInvalid(
                f"layout: schedule = {self.schedule!r:.40} is not one of {', '.join(SCHEDULES)}"
            )
        if isinstance(self.micro_batch, bool) or not isinstance(self.micro_batch, int):
            raise InputInvalid(
                f"layout: micro_batch = {self.micro_batch!r:.40} must be a whole number"
            )
        if not 0 <= self.micro_batch <= MOST:
            raise InputInvalid(
                f"layout: micro_batch = {self.micro_batch!r:.40} must be >= 0, at most {MOST}"
            )
        if not isinstance(self.recompute, bool):
            raise InputInvalid(f"layout: recompute = {self.recompute!r:.40} must be true or false")
        if self.cp_method not in CP_METHODS:
            raise InputInvalid(
                f"layout: cp_method = {self.cp_method!r:.40} is not one of {', '.join(CP_METHODS)}"
            )
        strange = [each for each in set(self.cp_by_layer) if self.cp % each]
        if strange:
            raise InputInvalid(
                f"layout: cp_layers = {self.cp_layers!r:.40}: {strange[0]} must divide "
                f"cp = {self.cp}"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(getattr(self, axis) for axis in AXES)

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees alone: layouts with equal ones have equal meshes, whatever else differs."""
        return (*(getattr(self, axis) for axis in AXES), self.ep, *self.cp_by_layer)

    @property
    def data_parallel(self) -> int:
        """Number of different samples that are processed at once."""
        return self.dp_replicate * self.dp_shard

    @property
    def cp_by_layer(self) -> tuple[int, ...]:
        """Over how many ranks each layer's attention is; () where all are over cp.

        Raises:
            InputInvalid: `cp_layers` is not understood, or names more than 4,096 layers.
        """
        text = self.cp_layers
        words = text.split(" ") if isinstance(text, str) and text else []
        found = [_CP_WORD.fullmatch(word) for word in words[: MOST_LAYERS + 1]]
        counts = [(int(each[1]), int(each[2] or 1)) for each in found if each is not None]
        layers = sum(count for _, count in counts)
        if not isinstance(text, str) or len(counts) < len(words) or layers > MOST_LAYERS:
            raise InputInvalid(
                f"layout: cp_layers = {text!r:.40} is not understood; write the ranks of each "
                f"layer, as '4 1 1 4' or '4x8 1x24', of at most {MOST_LAYERS} layers"
            )
        return tuple(degree for degree, count in counts for _ in range(count))

    def __str__(self) -> str:
        """Format as screens show it and logs name it: equal for equal layouts only.

        Degrees above one, then what is not the usual: `dp2 tp2`, `dp2 ep2, ep_bottleneck=4`;
        `1 rank` when all degrees are 1.
        """
        degrees = [(name, getattr(self, axis)) for axis, name in _SHORT.items()]
        shown = " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 rank"
        others = [
            f"{each.name}={getattr(self, each.name)}"
            for each in fields(self)
            if each.name not in _SHORT and getattr(self, each.name) != each.default
        ]
        return ", ".join((shown, *others))

    def other_function(self, reference: "Layout") -> str:
        """Say why it computes something else than `reference`, as a clause; "" where it does not.

        Such a layout is of class `statistical` at best, however near its losses are.
        """
        if self.ep_bottleneck == reference.ep_bottleneck:
            return ""
        return (
            f"it sends tokens to experts with ep_bottleneck = {self.ep_bottleneck}, the reference "
            f"with {reference.ep_bottleneck}: another function, of class statistical at best"
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse a layout as shown on screens and written by users: `dp2 tp2`, `dp2tp2`, `1`.

        Raises:
            InputInvalid: an unknown word, a repeated degree, or an impossible one.
        """
        words = text.strip().removesuffix(" rank")
        found = [] if words == "1" else _DEGREE.findall(words)
        degrees: dict[str, Any] = {_WORDS[word]: int(degree) for word, degree in found}
        if words != "1" and (_DEGREE.sub("", words) or not 0 < len(found) == len(degrees)):
            raise InputInvalid(
                f"layout: {text.strip()!r:.40} is not understood; write its degrees, each once, as "
                f"dp2, tp2 or dp2tp4 ({', '.join(_WORDS)}), or 1 for a single rank"
            )
        return cls(**degrees)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for the catalogue and the wire.

        `cp_method`, `cp_layers` and `ep_bottleneck` only where they are not the usual: readers of
        before, and digests and journal rows that they made, know no such fields.
        """
        return without_usual((each.name, getattr(self, each.name)) for each in fields(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode a layout from a catalogue or the wire.

        Raises:
            InputInvalid: an unknown key or an impossible degree.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputInvalid(
                f"layout: unknown key {unknown[0]!r:.40}; allowed: {', '.join(sorted(known))}"
            )
        return cls(**data)


def without_usual(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict for `asdict` of what holds layouts: as `Layout.to_dict` has them."""
    return {name: each for name, each in pairs if name not in _LATER or each != _LATER[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of one generation of a job, seen from one process.

    Attributes:
        participants: global ranks in mesh order; position in the tuple = rank in the group.
        global_rank: this process's rank in the launch.
        fresh: whether the state needs initial values. If not, a checkpoint is loaded into all of it
            right afterwards, so initialising it is not needed.
        placement: by layer of experts, the expert in each row of its stacks; () in order of number.
            Only a job that declares its stacks (`State.experts`) is ever given another.
    """

    participants: tuple[int, ...]
    global_rank: int
    fresh: bool = True
    placement: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that the list is not empty and has no duplicates."""
        if not self.participants or len(set(self.participants)) != len(self.participants):
            raise InputInvalid(
                f"ranks: {list(self.participants)} must name at least one rank, and none twice"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks that take part."""
        return len(self.participants)

    @property
    def taking_part(self) -> bool:
        """Tell whether this process trains in this generation; otherwise it is parked."""
        return self.global_rank in self.participants

    @property
    def group_rank(self) -> int:
        """This process's rank in the generation's process group; -1 when parked."""
        return self.participants.index(self.global_rank) if self.taking_part else -1
