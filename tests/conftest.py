"""Fixtures that rooms share: PostgreSQL, fresh journal addresses, the process that forks ranks.

Invariant: no two tests share a database, and nothing started here outlives the session.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_randomly
from hypothesis import settings

from tests import postgresql
from tests.builders.journals import fresh, fresh_file
from tests.compiled_once import pytest_xdist_setupnodes
from tests.spread import pytest_collection_modifyitems, pytest_xdist_make_scheduler
from tests.strict_skips import pytest_make_collect_report, pytest_runtest_makereport
from wattmesh.controller.journal.journal import Journal

if TYPE_CHECKING:
    from tests.hook.harness import Zygote

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_xdist_make_scheduler",
    "pytest_xdist_setupnodes",
]

# The Pythons that tests start collect garbage less often, and none when they end (scripts/setup).
os.environ["WATTMESH_QUICK_PYTHON"] = "1"

# One thread each: where workers share cores, the second thread of a sum is waited for by spinning,
# which took more time than all other computing of some tests.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# Nothing that is imported is garbage; `pytest_collection_finish` lets collection go on.
gc.disable()

# A shared two-core machine makes single examples slow at random: speed is the business of
# benchmarks. Tests whose law needs more examples ask for them.
settings.register_profile("house", deadline=None, max_examples=50)
settings.load_profile("house")

# DeepSpeed asks to be imported, with torch, to be seeded before every test; no test needs it.
pytest_randomly.entrypoint_reseeds = []


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Set what was imported aside: each collection of garbage would walk through all of it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End without walking through all that the session made."""
    gc.freeze()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[postgresql.Server]:
    """One private PostgreSQL server for the whole session; skips when it is not installed."""
    programs = postgresql.find_programs()
    if programs is None:
        pytest.skip(postgresql.MISSING)
    with postgresql.running(programs) as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql_server: postgresql.Server) -> Iterator[str]:
    """The address of an empty PostgreSQL database of this test's own."""
    with postgresql_server.fresh_database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty journal database: the test runs once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    address: str = request.getfixturevalue("postgresql_url")
    return address


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """An empty journal: the test runs once on each kind of database."""
    with closing(fresh(journal_url)) as opened:
        yield opened


@pytest.fixture
def sqlite_journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal in a SQLite file, for tests that no database can make differ."""
    with closing(fresh_file(tmp_path / "journal.db")) as opened:
        yield opened


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks ranks."""
    from tests.hook.harness import Zygote  # noqa: PLC0415 - imports torch

    started = Zygote()
    yield started
    started.close()


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process as the only rank of a group."""
    import torch.distributed as dist  # noqa: PLC0415 - most tests want no torch
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
