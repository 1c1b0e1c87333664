"""Collects the GPUs of a launch's ranks on global rank 0, through torchrun's store.

The agent of torchrun has a store before any process group exists. Invariant: this module never
imports torch, no rank waits for another, and a store that does not answer costs a background thread
some seconds.
"""

import dataclasses
import json
import logging
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from wattmesh.reconfig.gpus.own_gpus import OwnGpus
from wattmesh.reconfig.launch.launched import LaunchedProcess

log = logging.getLogger(__name__)

STORE_LIMIT = timedelta(seconds=5)


class RankGpus:
    """One rank's connection to the store. One thread uses it."""

    def __init__(self, launched: LaunchedProcess, environment: Mapping[str, str]) -> None:
        """Prepare; the first call connects."""
        self._rank = launched.rank
        self._world_size = launched.world_size
        self._environment = environment
        self._store: Any = None
        self._published: dict[int, OwnGpus] = {}

    @property
    def offered(self) -> bool:
        """Tell whether the launcher has a store for its ranks."""
        return self._environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def tell(self, found: OwnGpus) -> bool:
        """Publish this rank's GPUs and its node's; False: not possible yet."""
        return self._try_store(
            lambda store: store.set(str(self._rank), json.dumps(dataclasses.astuple(found)))
        )

    def published(self) -> Mapping[int, OwnGpus]:
        """Return what other ranks have published so far."""
        self._try_store(self._collect)
        return self._published

    def _collect(self, store: Any) -> None:
        for rank in range(self._world_size):
            # A rank publishes again when it knows more.
            known = self._published.get(rank)
            if rank != self._rank and not (known and known.uuids) and store.check([str(rank)]):
                uuids, why, allocated, allocated_why = json.loads(store.get(str(rank)))
                self._published[rank] = OwnGpus(
                    uuids=tuple(uuids),
                    why=why,
                    allocated=tuple(allocated),
                    allocated_why=allocated_why,
                )

    def _try_store(self, act: Any) -> bool:
        if not self.offered:
            return False
        try:
            self._store = self._store or self._connect()
            if self._store is not None:
                act(self._store)
        except Exception as error:
            log.debug("torchrun's store does not answer: %s", error)
            self._store = None
        return self._store is not None

    def _connect(self) -> Any:
        """Connect to the store; None until the script has imported torch itself."""
        torch = sys.modules.get("torch")
        # While a module is being imported, its spec is marked as initialising.
        if torch is None or getattr(torch.__spec__, "_initializing", False):
            return None
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return None
        environment = self._environment
        store = distributed.TCPStore(
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            is_master=False,
            timeout=STORE_LIMIT,
        )
        launch = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return distributed.PrefixStore(f"wattmesh-observe/{launch}", store)
