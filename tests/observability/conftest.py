"""One site and one Prometheus for all tests of this folder that need them: both start slowly."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.daemon.waiting import wait_for
from tests.docs.blocks import block
from tests.observability.live import LiveSite, live_site, standby
from tests.observability.prometheus import LocalServer, free_port, prometheus
from tests.observability.rule_files import RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A site that has lived, and the Prometheus that watched it all the time."""

    site: LiveSite
    prometheus: LocalServer


def scrape_config(daemons: list[int], agent: int, **more: Any) -> dict[str, Any]:
    """Take the settings that docs/dashboards.md shows; only addresses and paces are ours."""
    config: dict[str, Any] = yaml.safe_load(block("docs/dashboards.md", "What Prometheus scrapes"))
    config["global"] = dict.fromkeys(config["global"], "1s")
    config["rule_files"] = [f"{RULES}/*.yml"]
    for job, ports in zip(config["scrape_configs"], (daemons, [agent]), strict=True):
        (group,) = job["static_configs"]
        group["targets"] = [f"127.0.0.1:{port}" for port in ports]
    return config | more


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A site that was measured, switched, restarted and capped, beside a second daemon."""
    folder = tmp_path_factory.mktemp("w")
    with ExitStack() as all_of_it:
        site = all_of_it.enter_context(live_site(folder))
        (daemon, agent), second = site.ports, free_port()
        config = scrape_config([daemon, second], agent)
        watching = all_of_it.enter_context(prometheus(folder / "prometheus", config))
        site.run_through()
        # Not before: it would lead while the first one is restarted.
        all_of_it.enter_context(standby(site, second))
        wait_for(lambda: len(watching.vector("wattmesh_leader")) == 2, "two daemons to be scraped")
        site.train(
            lambda: watching.vector("wattmesh_carbon_saved_grams"), "a saving that is settled"
        )
        wait_for(lambda: watching.vector("wattmesh_gpu_lease_seconds"), "a lease to be scraped")
        all_of_it.enter_context(site.training())
        yield Watched(site=site, prometheus=watching)
