"""The client on a server that answers as the API server does, and misbehaves as one."""

import threading
import time
from itertools import islice
from pathlib import Path

import pytest

from tests.kubernetes.api_server import Trouble
from tests.kubernetes.cluster import NAMESPACE, Cluster
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.integrations.kubernetes import client as calls
from wattmesh.integrations.kubernetes.client import (
    ApiAddress,
    KubernetesClient,
    ObjectConflict,
    VersionExpired,
)
from wattmesh.integrations.kubernetes.job_kinds import JOBSET

ALL = JOBSET.path(NAMESPACE)


def client(cluster: Cluster, limit_s: float = 20.0) -> KubernetesClient:
    """The client of a pod."""
    server = ApiAddress(url=cluster.server.url, account=cluster.account)
    return KubernetesClient(server, limit_s=limit_s)


def jobset(name: str) -> calls.Object:
    """A suspended job."""
    container = {"name": "node", "image": "here", "command": ["true"]}
    work = {"completions": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "suspend": True,
            "replicatedJobs": [{"name": "ranks", "template": {"spec": work}}],
        },
    }


def test_objects_are_made_read_changed_and_deleted(cluster: Cluster) -> None:
    """Twice made is a conflict; an older version changes nothing; what is gone is no error."""
    api = client(cluster)
    assert api.get(f"{ALL}/a") is None
    made = api.create(ALL, jobset("a"))
    with pytest.raises(ObjectConflict, match="already exists"):
        api.create(ALL, jobset("a"))
    api.merge(f"{ALL}/a", {"metadata": {"labels": {"changed": "once"}}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    with pytest.raises(ObjectConflict, match="has been modified"):
        api.merge(f"{ALL}/a", {**stale, "spec": {"suspend": False}})
    found = api.get(f"{ALL}/a")
    assert found is not None
    assert found["metadata"]["labels"] == {"changed": "once"}
    assert found["spec"]["suspend"] is True
    with pytest.raises(InputInvalid, match="field is immutable"):
        api.merge(f"{ALL}/a", {"spec": {"replicatedJobs": []}})
    api.delete(f"{ALL}/a")
    api.delete(f"{ALL}/a")


def test_the_token_is_read_anew_and_a_refusal_says_why(cluster: Cluster) -> None:
    """The kubelet rotates it; who is unknown tries later, who lacks a right is told of the Role."""
    api = client(cluster)
    api.listed(ALL)
    cluster.server.tokens = {"token-2"}
    with pytest.raises(SourceUnavailable, match="the token is not known, or has run out"):
        api.listed(ALL)
    (cluster.account / "token").write_text("token-2")
    assert api.listed(ALL)[0] == []
    with pytest.raises(InputInvalid, match="lacks this right: see the Role"):
        api.listed(f"/api/v1/namespaces/{NAMESPACE}/secrets")
    (cluster.account / "token").unlink()
    with pytest.raises(InputInvalid, match="token cannot be read"):
        api.listed(ALL)


def test_a_server_that_another_ca_signed_is_not_spoken_to(
    cluster: Cluster, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Sabotaged twin: without a CA that signed it nothing is sent, the token least of all."""
    (cluster.account / "ca.crt").unlink()
    with pytest.raises(SourceUnavailable):
        client(cluster).get(f"{ALL}/a")
    assert cluster.server.asked == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_call_that_is_put_off_is_made_again_when_the_server_says(
    cluster: Cluster, status: int
) -> None:
    """Retry-After is waited for, within the call's limit."""
    cluster.server.troubles = [Trouble(how=status, verb="create", retry_after=1)]
    began = time.monotonic()
    client(cluster).create(ALL, jobset("a"))
    assert time.monotonic() - began >= 1.0
    cluster.server.troubles = [Trouble(how=status, verb="get", retry_after=60)]
    with pytest.raises(SourceUnavailable, match="the test makes trouble"):
        client(cluster).get(f"{ALL}/a")


@pytest.mark.parametrize("how", ["hang", "drip", "cut", "lost", 500])
def test_a_call_that_is_not_answered_ends_and_is_not_known(
    cluster: Cluster, how: int | str
) -> None:
    """Whether it took effect is found out by the next one."""
    cluster.server.troubles = [Trouble(how=how, verb="create")]
    began = time.monotonic()
    with pytest.raises(SourceUnavailable):
        client(cluster, limit_s=1.0).create(ALL, jobset("a"))
    # However busy the machine is: the answer that drips would take two minutes.
    assert time.monotonic() - began < 30.0
    there = client(cluster).get(f"{ALL}/a") is not None
    assert there is (how in ("drip", "cut", "lost"))


def test_all_calls_of_an_act_share_its_limit(cluster: Cluster) -> None:
    """However many there are."""
    cluster.server.troubles = [Trouble(how="hang", times=2)]
    api, began = client(cluster), time.monotonic()
    with api.within(1.0):
        for _ in range(2):
            with pytest.raises(SourceUnavailable):
                api.get(f"{ALL}/a")
    assert time.monotonic() - began < 15.0


def test_long_listings_come_in_pages_and_begin_anew_when_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A continuation that expired meanwhile costs a listing, and nothing is missed."""
    monkeypatch.setattr(calls, "PAGE", 2)
    api = client(cluster)
    for name in ("a", "b", "c"):
        api.create(ALL, jobset(name))
    cluster.server.page_forgets = 1
    found, version = api.listed(ALL)
    assert [each["metadata"]["name"] for each in found] == ["a", "b", "c"]
    assert int(version) >= int(found[-1]["metadata"]["resourceVersion"])
    cluster.server.page_forgets = 9
    with pytest.raises(SourceUnavailable, match="forgets its listing"):
        api.listed(ALL)


def test_a_watch_tells_what_happens_and_its_bookmarks_carry_the_version_on(
    cluster: Cluster,
) -> None:
    """From the version on, and nothing twice; bookmarks come while nothing happens."""
    api = client(cluster)
    api.create(ALL, jobset("a"))
    _, version = api.listed(ALL)
    api.create(ALL, jobset("b"))
    seen = list(islice(api.watch(ALL, version, 10.0), 2))
    assert [kind for kind, _ in seen] == ["ADDED", "BOOKMARK"]
    assert seen[0][1]["metadata"]["name"] == "b"
    later = seen[1][1]["metadata"]["resourceVersion"]
    threading.Timer(0.2, api.delete, (f"{ALL}/b",)).start()
    news = (each for each in client(cluster).watch(ALL, later, 20.0) if each[0] != "BOOKMARK")
    kind, gone = next(news)
    assert (kind, gone["metadata"]["name"]) == ("DELETED", "b")


def test_a_watch_from_a_forgotten_version_says_so_before_and_meanwhile(cluster: Cluster) -> None:
    """410 Gone as an answer, and as an event in the stream."""
    api = client(cluster)
    _, version = api.listed(ALL)
    meanwhile = api.watch(ALL, version, 20.0)
    assert next(meanwhile)[0] == "BOOKMARK"
    cluster.server.store.version += 5
    cluster.server.store.forget()
    with pytest.raises(VersionExpired):
        list(meanwhile)
    with pytest.raises(VersionExpired, match="too old resource version"):
        next(api.watch(ALL, version, 20.0))


def test_a_watch_that_breaks_off_ends_and_tells_no_half_event(cluster: Cluster) -> None:
    """The caller goes on from the version that it has."""
    api = client(cluster)
    _, version = api.listed(ALL)
    api.create(ALL, jobset("a"))
    cluster.server.troubles = [Trouble(how="cut", verb="watch")]
    assert list(api.watch(ALL, version, 10.0)) == []
    assert next(api.watch(ALL, version, 10.0))[1]["metadata"]["name"] == "a"
