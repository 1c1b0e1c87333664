"""Answers that no API server gives: a gateway that redirects, listings without end, odd events."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import NAMESPACE, Cluster
from tests.kubernetes.test_client import jobset
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.integrations.kubernetes import client as calls
from wattmesh.integrations.kubernetes import job_kinds
from wattmesh.integrations.kubernetes.client import ApiAddress, KubernetesClient
from wattmesh.integrations.kubernetes.job_kinds import JOBSET, TRAINJOB
from wattmesh.integrations.kubernetes.job_queue import KubernetesQueue, PodJob
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.contract import HeldState, NextLaunch
from wattmesh.reconfig.launcher.launch_book import LaunchBook

PATH = JOBSET.path("team")
RUN = "3a7c1a52-3d0f-4b6c-8d5e-0a3f7f6a9c11"


class _Odd(BaseHTTPRequestHandler):
    """Gives every call the same answer."""

    server: "Gateway"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.said)))
        self.end_headers()
        self.wfile.write(self.server.said)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def log_message(self, *told: object) -> None:
        """Say nothing."""


class Gateway(ThreadingHTTPServer):
    """What stands where the API server should."""

    daemon_threads = True
    status, said = 200, b"{}"


@dataclass(slots=True)
class Pod:
    """A client, and the gateway that it speaks to."""

    gateway: Gateway
    api: KubernetesClient = field(init=False)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    """A gateway on a free port."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").touch()
    with Gateway(("127.0.0.1", 0), _Odd) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        made = Pod(gateway)
        url = f"http://127.0.0.1:{gateway.server_address[1]}"
        made.api = KubernetesClient(ApiAddress(url=url, account=tmp_path))
        yield made
        gateway.shutdown()


def acts(api: KubernetesClient) -> Iterator[Any]:
    """Each act that changes something, as the queue makes it."""
    yield lambda: api.create(PATH, {})
    yield lambda: api.merge(f"{PATH}/a", {"spec": {"suspend": False}})
    yield lambda: api.delete(f"{PATH}/a")


@pytest.mark.parametrize("status", [300, 302, 304, 600])
def test_what_is_no_success_has_let_nothing_begin_and_deleted_nothing(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A gateway's redirect: the run must not leave for a launch that nobody lets begin."""
    pod.gateway.status = status
    for act in acts(pod.api):
        with pytest.raises(InputInvalid, match=rf"\({status}\)"):
            act()
    # Sabotaged twin: what is no refusal counts as done, as it did.
    monkeypatch.setattr(calls, "_DONE", range(1000))
    if status != 304:  # without a body it cannot be read
        for act in acts(pod.api):
            act()


def test_a_listing_without_end_is_given_up(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known then what there is; the twin, with an end, is read."""
    monkeypatch.setattr(calls, "MOST_PAGES", 3)
    page: dict[str, Any] = {"items": [{}], "metadata": {"continue": "on", "resourceVersion": "7"}}
    pod.gateway.said = json.dumps(page).encode()
    with pytest.raises(SourceUnavailable, match="no end after 3 pages"):
        pod.api.listed(PATH)
    page["metadata"].pop("continue")
    pod.gateway.said = json.dumps(page).encode()
    assert pod.api.listed(PATH) == ([{}], "7")


@pytest.mark.parametrize("odd", ["null", '"x"', "[1]", "[" * 50_000])
@pytest.mark.parametrize("kind", ["ERROR", "BOOKMARK", "ADDED"])
def test_an_event_without_an_object_ends_the_watch(pod: Pod, kind: str, odd: str) -> None:
    """The caller lists again; the twin's event is told."""
    pod.gateway.said = f'{{"type":"{kind}","object":{odd}}}\n'.encode()
    assert list(pod.api.watch(PATH, "1", 10.0)) == []
    pod.gateway.said = b'{"type":"ADDED","object":{"metadata":null}}\n'
    assert [each for _, each in pod.api.watch(PATH, "1", 10.0)] == [{"metadata": None}]


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_job_with_odd_fields_is_read_as_one_without_them(moment: str) -> None:
    """Moments beyond the calendar, no trainer, no metadata; the twin's fields are read."""
    assert job_kinds.facts(JOBSET, {"metadata": {"creationTimestamp": moment}}).created_at is None
    plain = {"metadata": {"creationTimestamp": "2026-12-01T00:00:00Z"}}
    assert job_kinds.facts(JOBSET, plain).created_at is not None
    made = job_kinds.successor(TRAINJOB, {"spec": {"trainer": None}}, 2, "r", "k")
    assert made["spec"]["trainer"] == {"numNodes": 2}
    assert job_kinds.version_of({"metadata": None}) == ""
    assert job_kinds.version_of({"metadata": {"resourceVersion": "8"}}) == "8"


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_launch_that_another_job_withdrew_meanwhile_is_not_called_held(
    cluster: Cluster, tmp_path: Path, meanwhile: bool
) -> None:
    """The run would have left for it, and no job of it may train. Twin: nobody withdraws it."""
    api = KubernetesClient(ApiAddress(url=cluster.server.url, account=cluster.account))
    everything = JOBSET.path(NAMESPACE)
    api.create(everything, jobset("a"))
    folder, admit = RunFolder(tmp_path / "run"), cluster.server.admit

    def begun_meanwhile(kind: str, made: Any, found: Any) -> str:
        if meanwhile:
            LaunchBook(folder).change(launch_book.withdraw_all)
        return admit(kind, made, found)

    cluster.server.admit = begun_meanwhile
    queue = KubernetesQueue(
        api, folder, PodJob(kind=JOBSET, namespace=NAMESPACE, name="a", per_host=1)
    )
    held = queue.hold(NextLaunch(key="plan-1", run=RUN, ranks=2))
    assert held.state is (HeldState.WITHDRAWN if meanwhile else HeldState.HELD)
    names = [each["metadata"]["name"] for each in api.listed(everything)[0]]
    assert len(names) == (1 if meanwhile else 2)
