"""Which of a node's GPUs a process means: a table of what launchers and people set."""

import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon.waiting import wait_for
from wattmesh.reconfig.gpus import own_gpus
from wattmesh.reconfig.gpus.own_gpus import NvmlBoard, OwnGpus, gpu_of_rank, gpus_unknown, tell
from wattmesh.reconfig.launch.launched import LaunchedProcess
from wattmesh.reconfig.ranges import MOST_RANKS
from wattmesh.telemetry.fake_nvml import FakeNvml

A, B, C = (NvmlBoard(uuid=f"GPU-{each}", name="H100") for each in ("aa11", "aa22", "bb33"))
NODE = (A, B, C)
MIXED = (A, B, replace(C, name="T4"))
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2"}


@pytest.mark.parametrize(
    ("boards", "environment", "found"),
    [
        # One GPU is visible, whichever rank asks.
        ((A,), {}, ["aa11"]),
        (NODE, {VISIBLE: "1"}, ["aa22"]),
        (NODE, {VISIBLE: " 2 "}, ["bb33"]),
        (NODE, {VISIBLE: "2", **TORCHRUN}, ["bb33"]),
        (NODE, {VISIBLE: "GPU-bb33"}, ["bb33"]),
        (NODE, {VISIBLE: "GPU-bb"}, ["bb33"]),
        # CUDA shows nothing from the first entry on that means nothing, or several.
        (NODE, {VISIBLE: "1,-1,0"}, ["aa22"]),
        (NODE, {VISIBLE: "0,7,1"}, ["aa11"]),
        (NODE, {VISIBLE: ""}, "no GPU"),
        (NODE, {VISIBLE: "-1"}, "no GPU"),
        (NODE, {VISIBLE: "NoDevFiles"}, "no GPU"),
        (NODE, {VISIBLE: "GPU-aa"}, "no GPU"),
        (NODE, {VISIBLE: "9" * 5000}, "no GPU"),
        (NODE, {VISIBLE: "00000000001"}, "no GPU"),
        (NODE, {VISIBLE: "\u00b2"}, "no GPU"),
        (NODE, {VISIBLE: "1,1"}, "twice"),
        ((), {VISIBLE: "0"}, "no GPU"),
        # The local rank picks, of what is visible and in that order.
        (NODE, TORCHRUN, ["aa22"]),
        (NODE, {VISIBLE: "2,0", **TORCHRUN}, ["aa11"]),
        (NODE, SRUN, ["bb33"]),
        ((A, B), SRUN, "local rank is 2"),
        (NODE, {"RANK": "0", "WORLD_SIZE": "2"}, "3 GPUs are visible"),
        # One process alone may use any: NVML's own list tells, else nobody.
        (NODE, {}, "3 GPUs are visible"),
        (NODE, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, "3 GPUs"),
        ((A, replace(B, ours=True), C), {}, ["aa22"]),
        ((A, replace(B, ours=True), replace(C, ours=True)), {}, ["aa22", "bb33"]),
        (tuple(replace(each, ours=each is MIXED[2]) for each in MIXED), {}, ["bb33"]),
        # Of a rank it proves nothing: many leave a context on the first GPU.
        ((A, B, replace(C, ours=True)), TORCHRUN, "NVML lists it on GPU-bb33"),
        ((replace(A, ours=True), replace(B, ours=True), C), TORCHRUN, ["aa22"]),
        # Where boards differ CUDA counts by speed, which NVML does not know.
        (MIXED, {VISIBLE: "0"}, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (MIXED, TORCHRUN, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (MIXED, {VISIBLE: "0", ORDER: "FASTEST_FIRST"}, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (MIXED, {VISIBLE: "2", ORDER: "PCI_BUS_ID"}, ["bb33"]),
        (MIXED, {VISIBLE: "GPU-bb33"}, ["bb33"]),
        # A slice is no board.
        (NODE, {VISIBLE: "MIG-1234"}, "MIG"),
        ((replace(A, sliced=True), B), {VISIBLE: "0"}, "MIG"),
        ((replace(A, sliced=True), B), {VISIBLE: "1"}, ["aa22"]),
    ],
)
def test_what_a_process_means_is_found_or_said_to_be_unknown(
    boards: tuple[NvmlBoard, ...], environment: Mapping[str, str], found: list[str] | str
) -> None:
    """A name only where no other GPU can be meant; else a sentence."""
    told = tell(boards, environment)
    if isinstance(found, str):
        assert told.uuids == ()
        assert found in told.why
    else:
        assert told == OwnGpus(uuids=tuple(f"GPU-{each}" for each in found))


def test_a_real_library_is_read_and_let_go(tmp_path: Path) -> None:
    """Through NVML's own binding: names, MIG mode and whose processes, in a process of its own."""
    fake = FakeNvml.create(tmp_path / "gpus", 2)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from wattmesh.telemetry.fake_nvml import FakeNvml\n"
        "from wattmesh.reconfig.gpus.own_gpus import own_gpus\n"
        "fake = FakeNvml(Path(sys.argv[1])); found = [own_gpus()]\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'; found.append(own_gpus())\n"
        "fake.gpu(1).mig(True); found.append(own_gpus())\n"
        "fake.gpu(0).lose(); found.append(own_gpus())\n"
        "for each in found: print('|'.join(each.uuids), each.why)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(fake.folder)],
        env=fake.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    several, second, sliced, lost = done.stdout.splitlines()
    assert "2 GPUs are visible" in several
    assert second == f"{fake.gpu(1).uuid} "
    assert "MIG slice" in sliced
    assert "could not be looked up" in lost


def test_a_driver_that_hangs_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked; once it answers, so does the look."""
    go_on, begun = threading.Event(), []

    def hangs() -> OwnGpus:
        begun.append(1)
        go_on.wait()
        return OwnGpus(uuids=("GPU-aa11",))

    monkeypatch.setattr(own_gpus, "LOOK_S", 0.01)
    monkeypatch.setattr(own_gpus, "_look", hangs)
    for _ in range(3):
        assert own_gpus.own_gpus().why == "NVML did not answer within 0.01 s"
    assert begun == [1]
    go_on.set()
    monkeypatch.setattr(own_gpus, "LOOK_S", 30.0)
    wait_for(lambda: own_gpus.own_gpus().uuids == ("GPU-aa11",), "an answer")


def torch_that(**cuda: Any) -> SimpleNamespace:
    """A torch as far as it is asked; the tested torch has no CUDA."""
    return SimpleNamespace(cuda=SimpleNamespace(**cuda))


def test_torch_is_asked_only_once_it_uses_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, asking it would initialise CUDA; then it knows better than any variable."""
    monkeypatch.setattr(own_gpus, "node_boards", lambda: list(NODE))
    monkeypatch.setenv(VISIBLE, "2")
    for spoilt in (torch_that(is_initialized=lambda: False), torch_that(), SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "torch", spoilt)
        assert own_gpus.own_gpus().uuids == ("GPU-bb33",)
    uses = torch_that(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_reserved=lambda device: 1024 * (device == 1),
        get_device_properties=lambda device: SimpleNamespace(uuid=("aa11", "aa22", "x")[device]),
    )
    monkeypatch.setitem(sys.modules, "torch", uses)
    assert own_gpus.own_gpus() == OwnGpus(uuids=("GPU-aa22",))
    uses.cuda.memory_reserved = lambda device: 1024 * (device == 2)
    assert "MIG" in own_gpus.own_gpus().why


def test_attach_names_what_is_given_else_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of the script's wins; on a CPU nothing is looked for; the daemon is told why not."""
    monkeypatch.setattr(own_gpus, "own_gpus", lambda: OwnGpus(uuids=("GPU-aa11",)))
    assert gpu_of_rank("GPU-mine", "cuda", 0) == ("GPU-mine", "")
    assert gpu_of_rank("", "cpu", 0) == ("", "")
    assert gpu_of_rank("", "cuda:1", 0) == ("GPU-aa11", "")
    monkeypatch.setattr(own_gpus, "own_gpus", lambda: OwnGpus(why="a reason\n" * 99))
    named, why = gpu_of_rank("", "cuda", 0)
    assert named == ""
    (capability,) = gpus_unknown(["", why])
    assert capability.startswith("gpus unknown: a reason a reason")
    assert len(capability) == 255
    assert gpus_unknown(["", ""]) == ()


@pytest.mark.parametrize(
    ("environment", "launched"),
    [
        ({}, LaunchedProcess()),
        (TORCHRUN, LaunchedProcess(rank=5, world_size=6, local_rank=1)),
        ({**SRUN, **TORCHRUN}, LaunchedProcess(rank=5, world_size=6, local_rank=1)),
        ({"RANK": "x", "WORLD_SIZE": "6"}, LaunchedProcess()),
        ({"RANK": "6", "WORLD_SIZE": "6"}, LaunchedProcess()),
        ({"RANK": "6", "WORLD_SIZE": str(10**12)}, LaunchedProcess()),
        ({"RANK": "6", "WORLD_SIZE": "9999999"}, LaunchedProcess(rank=6, world_size=MOST_RANKS)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0"},
            LaunchedProcess(rank=1, world_size=2),
        ),
        (
            {**SRUN, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "2"},
            LaunchedProcess(rank=3, world_size=4, local_rank=2, job="slurm  7.0", number=2001),
        ),
        (
            {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1"},
            LaunchedProcess(job="torchelastic x", number=2),
        ),
        ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}, LaunchedProcess()),
    ],
)
def test_a_process_knows_its_place_and_its_job(
    environment: Mapping[str, str], launched: LaunchedProcess
) -> None:
    """The innermost launcher is believed; launched again a job keeps its run."""
    found = LaunchedProcess.read(environment)
    assert found == launched
    again, other = found.run(1000, "llama"), found.run(1001, "llama")
    assert (again == found.run(1000, "llama")) is bool(found.job)
    assert again != other
