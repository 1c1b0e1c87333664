"""What is torn down is gone: compiled models, and groups whose end hangs."""

import ctypes
import functools
import gc
import json
import os
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, TP2, Run, Zygote, until, worst_difference
from tests.hook.switches.test_switch import GOOD, Undisturbed
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state import caches
from wattmesh.reconfig.state.caches import MeshCaches
from wattmesh.reconfig.state.state import State

PATIENCE_S = 0.5


def rank_with_a_pending_call() -> int:
    """End a group in which the peer never joins a call, then train on in another one."""
    rank, folder = int(os.environ["RANK"]), Path(os.environ["FOLDER"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    begin(store, "first", rank)
    if rank == 0:
        # The call is never waited for: nothing but the group's end notices that it hangs.
        dist.all_reduce(torch.zeros(4), async_op=True)
        group.end(PATIENCE_S)
        (folder / "ended").touch()
    else:
        until((folder / "ended").exists, "rank 0 has ended its group")
        group.end(PATIENCE_S)
    assert not dist.is_initialized()
    begin(store, "second", rank)
    assert group.gather(rank) == [0, 1]
    if rank == 0:
        (folder / "threads").write_text(str(len(os.listdir("/proc/self/task"))))
    group.end(PATIENCE_S)
    return 0


def begin(store: TCPStore, name: str, rank: int) -> None:
    """Make a group whose calls may hang for long."""
    dist.init_process_group(
        "gloo",
        store=PrefixStore(name, store),
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=30),
    )


def test_a_group_whose_end_hangs_is_left_behind(zygote: Zygote, tmp_path: Path) -> None:
    """A call that a peer never made keeps a gloo group from ending; the rank goes on without it."""
    job = "tests.hook.switches.test_teardown:rank_with_a_pending_call"
    launch = zygote.start(2, {"FOLDER": str(tmp_path)}, tmp_path, job)
    status = zygote.wait(launch)
    log = (tmp_path / "rank-0.log").read_text()
    assert status == 0, log
    assert "a process group still waits for a call that some rank never made" in log


def rank_with_a_wrapped_model() -> int:
    """Train one step with DDP; write who let go of the group, and whether DDP was gone by then."""
    folder = Path(os.environ["FOLDER"])
    wrapped: list[weakref.ref[DistributedDataParallel]] = []

    def note() -> None:
        told = [threading.current_thread().name, wrapped[0]() is None]
        (folder / "told").write_text(json.dumps(told))

    def build(layout: Layout, ranks: Ranks) -> State:
        del layout, ranks
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        wrapped.append(weakref.ref(model))
        weakref.finalize(dist.group.WORLD, note)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return State(modules=[model], optimizers=[optimizer])

    with attach(
        "wrapped",
        build=build,
        probe=lambda state: 1.0,
        layout=Layout(),
        checkpoint_dir=folder / "ck",
        boundary_every=1,
        tokens_total=int(os.environ["TOKENS"]),
    ) as session:
        session.report(tokens=1)
        session.boundary()
        assert session.done == (os.environ["TOKENS"] == "1")
    return 0


@pytest.mark.parametrize("tokens", ["1", "2"], ids=["at its end", "before"])
def test_a_model_that_holds_its_group_is_gone_before_the_group(
    zygote: Zygote, tmp_path: Path, tokens: str
) -> None:
    """When a session closes: the last reference goes in a thread that is watched, never in DDP."""
    job = "tests.hook.switches.test_teardown:rank_with_a_wrapped_model"
    launch = zygote.start(1, {"FOLDER": str(tmp_path), "TOKENS": tokens}, tmp_path, job)
    assert zygote.wait(launch) == 0, (tmp_path / "rank-0.log").read_text()
    assert json.loads((tmp_path / "told").read_text()) == ["wattmesh-bounded", True]


def test_a_compiled_model_is_torn_down_and_compiled_again(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Nothing that torch.compile made holds the old layout, and no loss moves."""
    wishes = [Wish(layout=TP2, ranks=(0, 1), at=4), Wish(layout=DP2, ranks=(1, 0), at=8)]
    waits = {"4": "order-1", "8": "order-2"}
    run = Run(zygote, tmp_path, 2, steps=12, boundary_every=4, wait_for=waits, compiled=True)
    run.with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert daemon.states() == GOOD * 2
    assert worst_difference(run.losses(), undisturbed(12, "float32")) <= 1e-5


@pytest.mark.parametrize(
    "freeze", [gc.freeze, lambda: MeshCaches(gc_freeze=True)], ids=["the script", "another session"]
)
def test_what_was_set_aside_before_is_forgotten_too(
    freeze: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of torch's is found though it was frozen before this session began."""
    monkeypatch.setattr(MeshCaches, "_lasts", False)

    def planned(mesh: int) -> int:
        return mesh

    planned.__module__ = "torch.distributed.tensor.test"
    cached = functools.lru_cache(planned)
    kind = torch.distributed.tensor.DTensor
    monkeypatch.setattr(kind, "_planned", staticmethod(cached), raising=False)
    freeze()
    count = gc.get_freeze_count()
    try:
        cached(1)
        MeshCaches().forget("cpu")
        assert cached.cache_info().currsize == 0
        assert 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        """Refer to itself."""
        self.me = self


def test_a_switch_walks_only_what_was_made_since_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What outlived it is set aside, with its caches, for a while or until the session ends."""
    monkeypatch.setattr(caches, "FULL_EVERY", 3)
    monkeypatch.setattr(MeshCaches, "_lasts", False)
    before = gc.get_freeze_count()
    gc.unfreeze()
    own, made = MeshCaches(), []

    def planned(mesh: int) -> int:
        return mesh

    planned.__module__ = "torch.distributed.tensor.test"
    kept = Cycle()
    lasting = weakref.ref(kept)
    try:
        for switch in range(1, 5):
            cached = functools.lru_cache(planned)
            cached(1)
            made.append(cached)
            fresh = weakref.ref(Cycle())
            own.collect("cpu", switching=True)
            assert gc.get_freeze_count() > 0
            assert [each.cache_info().currsize for each in made] == [0] * switch
            for each in made:
                each(1)
            # The layout's own garbage goes at every switch; what outlived one, at a full walk.
            assert fresh() is None
            if switch == 1:
                del kept
            assert (lasting() is None) == (switch == 4)
        own.collect("cpu", switching=False)
        own.thaw()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
        if before:
            gc.freeze()


@pytest.mark.parametrize("lasts", [True, False], ids=["as asked", "the twin"])
def test_what_was_set_aside_for_good_is_not_walked_by_later_sessions(
    monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """Nor by those of forked ranks, at their first switch; a twin that forgets it walks all."""
    monkeypatch.setattr(MeshCaches, "_lasts", False)
    garbage = Cycle()
    held = weakref.ref(garbage)
    try:
        MeshCaches(gc_freeze=True)
        monkeypatch.setattr(MeshCaches, "_lasts", lasts)
        del garbage
        later = MeshCaches()
        later.collect("cpu", switching=True)
        assert (held() is not None) == lasts
        later.thaw()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


class HiddenFromCollector(Cycle):
    """Garbage that holds another object as C++ does: where the collector does not look."""

    def __init__(self, held: object) -> None:
        """Hold it."""
        super().__init__()
        self._where: Any = ctypes.py_object(held)
        ctypes.pythonapi.Py_IncRef(self._where)
        self._end = ctypes.pythonapi.Py_DecRef

    def __del__(self) -> None:
        """Let go."""
        held, self._where = self._where, None
        self._end(held)


def test_what_compiled_code_held_is_garbage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before all that is alive is set aside: it would be taken for what still holds the state."""
    monkeypatch.setattr(MeshCaches, "_lasts", False)
    monkeypatch.setattr(torch_compat, "has_compiled", lambda: True)
    own, garbage = MeshCaches(), Cycle()
    held = weakref.ref(garbage)
    gc.disable()
    try:
        HiddenFromCollector(garbage)
        del garbage
        own.collect("cpu", switching=True)
        assert held() is None
    finally:
        gc.enable()
        own.thaw()


def test_what_the_script_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session thaws only what it set aside itself."""
    monkeypatch.setattr(MeshCaches, "_lasts", False)
    gc.freeze()
    try:
        own = MeshCaches()
        own.collect("cpu", switching=True)
        own.thaw()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
