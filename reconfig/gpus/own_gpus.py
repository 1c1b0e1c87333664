"""Finds the GPUs of this process by UUID: from torch, or from its environment and NVML.

It never initialises CUDA: torch is asked only after the script has used CUDA. Before that,
CUDA_VISIBLE_DEVICES and the local rank count, interpreted as CUDA does (CUDA Programming Guide,
"CUDA Environment Variables"). Invariant: a GPU is named only if it is unambiguous; otherwise a
sentence says why not.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh.reconfig.launch.failures.bounded import Attempt
from wattmesh.reconfig.launch.launched import LaunchedProcess
from wattmesh.reconfig.ranges import clean
from wattmesh.reconfig.wire.messages import GPUS_UNKNOWN

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Time limit of NVML, because a hung driver never answers."""

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""In another namespace (most containers) our pids differ from those that NVML lists."""

LONGEST = 255
"""Most characters of a capability."""

NO_GPU = "this process uses no GPU"
NO_BINDING = "nvidia-ml-py is not installed here (`pip install nvidia-ml-py`)"
MIG = (
    "it computes on a MIG slice of a board, whose energy no meter tells apart from the other slices"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnGpus:
    """The result. `uuids`: empty if `why` says why.

    Attributes:
        allocated: GPUs that the scheduler gave this job on this node, used or not.
        allocated_why: why those are not known; "" also where no scheduler gave any.
    """

    uuids: tuple[str, ...] = ()
    why: str = ""
    allocated: tuple[str, ...] = ()
    allocated_why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlBoard:
    """One board from NVML, in PCI bus order.

    Attributes:
        name: its model.
        sliced: MIG mode is on.
        ours: NVML lists this process as a compute process on it.
        minor: number of its device file; None: not known.
    """

    uuid: str
    name: str = ""
    sliced: bool = False
    ours: bool = False
    minor: int | None = None


_newest: list[Attempt[OwnGpus]] = []


def own_gpus() -> OwnGpus:
    """Find them now, within `LOOK_S`, without raising."""
    return bounded(_newest, _look)


def bounded(newest: list[Attempt[OwnGpus]], look: Callable[[], OwnGpus]) -> OwnGpus:
    """Look within `LOOK_S`, without raising; `newest` keeps a look that has not ended."""
    hangs = OwnGpus(why=f"NVML did not answer within {LOOK_S:g} s")
    # A hung driver blocks only one thread, however often this is called.
    if newest and not newest[0].ended:
        return hangs
    newest[:] = [Attempt(look)]
    try:
        newest[0].done(LOOK_S)
    except Exception as error:
        return OwnGpus(why=f"its GPUs could not be looked up ({type(error).__name__}: {error})")
    return newest[0].answer(hangs)


def gpu_of_rank(named: str, device: str, rank: int) -> tuple[str, str]:
    """Return the GPU of an attached rank, or why it is not known.

    Args:
        named: the UUID from the script; "" finds it.
        device: torch's name of the rank's device.
        rank: its global rank, for the log.
    """
    if named or not device.startswith("cuda"):
        return named, ""
    found = own_gpus()
    if len(found.uuids) == 1:
        return found.uuids[0], ""
    why = found.why or f"it computes on {len(found.uuids)} GPUs; give attach its gpu_uuid"
    log.warning("attach: the GPU of rank %d is not known: %s", rank, why)
    return "", why


def gpus_unknown(whys: Iterable[str]) -> tuple[str, ...]:
    """Return the capability that says why not all GPUs are known; () when all are."""
    why = next(filter(None, whys), "")
    return (f"{GPUS_UNKNOWN}{clean(why)}"[:LONGEST],) if why else ()


def tell(boards: Sequence[NvmlBoard], environment: Mapping[str, str]) -> OwnGpus:
    """Find the boards of a process with this environment. Pure."""
    meant = _meant(boards, environment)
    if isinstance(meant, str):
        return OwnGpus(why=meant)
    if any(each.sliced for each in meant):
        return OwnGpus(why=MIG)
    return OwnGpus(uuids=tuple(each.uuid for each in meant))


def _meant(
    boards: Sequence[NvmlBoard], environment: Mapping[str, str]
) -> Sequence[NvmlBoard] | str:
    """The boards of the process, or why they are not known."""
    launched = LaunchedProcess.read(environment)
    ours = [each for each in boards if each.ours]
    if ours and launched.world_size == 1:
        return ours
    shown = _visible(boards, environment)
    if isinstance(shown, str) or len(shown) == 1:
        return shown
    local = launched.local_rank
    if launched.world_size == 1 or local is None:
        return (
            f"{len(shown)} GPUs are visible and it computes on none of them as far as NVML says; "
            "set CUDA_VISIBLE_DEVICES"
        )
    if local >= len(shown):
        return f"its local rank is {local}, and {len(shown)} GPUs are visible"
    # Ranks often have a context on the first GPU, so a context elsewhere only raises doubt.
    if ours and shown[local] not in ours:
        return f"its local rank means {shown[local].uuid}, and NVML lists it on {ours[0].uuid}"
    return [shown[local]]


def _visible(boards: Sequence[NvmlBoard], environment: Mapping[str, str]) -> list[NvmlBoard] | str:
    """The boards that are visible to CUDA, in its order; or why that is not known."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if not boards:
        return NO_GPU
    mixed = len({each.name for each in boards}) > 1
    by_speed = mixed and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if setting is None:
        return _order_unknown(boards) if by_speed and len(boards) > 1 else list(boards)
    shown: list[NvmlBoard] = []
    for entry in (each.strip() for each in setting.split(",")):
        found = _entry(boards, entry)
        # In CUDA, entries after an invalid one are not visible.
        if found is None:
            break
        if entry.isdecimal() and by_speed:
            return _order_unknown(boards)
        if isinstance(found, str):
            return found
        if found in shown:
            return f"CUDA_VISIBLE_DEVICES names {found.uuid} twice"
        shown.append(found)
    return shown or f"{NO_GPU}: CUDA_VISIBLE_DEVICES shows none"


def _entry(boards: Sequence[NvmlBoard], entry: str) -> NvmlBoard | str | None:
    """Return the board that an entry names, None if it names none, or why it is not known."""
    if entry.isascii() and entry.isdecimal():
        return next(iter(boards[int(entry) :]), None) if len(entry) < 10 else None
    if entry.startswith("MIG-"):
        return MIG
    meant = [each for each in boards if entry.startswith("GPU-") and each.uuid.startswith(entry)]
    return meant[0] if len(meant) == 1 else None


def _order_unknown(boards: Sequence[NvmlBoard]) -> str:
    kinds = ", ".join(sorted({each.name for each in boards}))
    return f"the node has several kinds of boards ({kinds}); set CUDA_DEVICE_ORDER=PCI_BUS_ID"


def _look() -> OwnGpus:
    """Ask torch if it computes already, else interpret the environment with NVML's boards."""
    computing = _by_torch()
    try:
        boards = node_boards()
    except ImportError:
        return OwnGpus(uuids=computing, why="" if computing else NO_BINDING)
    if computing and boards and not {each.uuid for each in boards}.issuperset(computing):
        return OwnGpus(why=MIG)
    return OwnGpus(uuids=computing) if computing else tell(boards, os.environ)


def _by_torch() -> tuple[str, ...]:
    """The devices on which torch has memory; none before the script uses CUDA."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # Any further call would initialise CUDA, after which a script can neither fork nor select.
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return ()
    used = [each for each in range(cuda.device_count()) if cuda.memory_reserved(each) > 0]
    uuids = (str(cuda.get_device_properties(each).uuid) for each in used)
    return tuple(each if each.startswith("GPU-") else f"GPU-{each}" for each in uuids)


def node_boards() -> list[NvmlBoard]:
    """List the node's boards, as far as this process may open them.

    Raises:
        ImportError: there is no NVML binding. Others: from NVML.
    """
    # Imported here, because the hook also works without it and then says what is missing.
    import pynvml  # noqa: PLC0415

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return []
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [_board(pynvml, each) for each in handles]
    finally:
        pynvml.nvmlShutdown()


def _board(pynvml: Any, handle: Any) -> NvmlBoard:
    try:
        sliced = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:  # a board without MIG
        sliced = False
    try:
        minor: int | None = int(pynvml.nvmlDeviceGetMinorNumber(handle))
    except pynvml.NVMLError:
        minor = None
    pids = set()
    if _sees_our_pid():
        pids = {each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return NvmlBoard(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        sliced=sliced,
        ours=os.getpid() in pids,
        minor=minor,
    )


def _text(said: str | bytes) -> str:
    """Decode a text; older bindings return bytes."""
    return said.decode() if isinstance(said, bytes) else said


def _sees_our_pid() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == FIRST_PID_NAMESPACE
    except OSError:
        return False
