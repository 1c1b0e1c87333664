"""What is rendered and what is installed: allowed by the schemas, and with no right too many."""

import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes import schemas
from wattmesh.controller.settings.model import Settings
from wattmesh.errors import InputInvalid
from wattmesh.integrations.kubernetes import __main__ as commands
from wattmesh.integrations.kubernetes import alarm, job_kinds, manifests
from wattmesh.integrations.kubernetes.job_kinds import JOBSET, TRAINJOB, JobKind
from wattmesh.integrations.kubernetes.manifests import JobRequest

RUN, KEY = "3a7c1a52-3d0f-4b6c-8d5e-0a3f7f6a9c11", "plan-1"
NOW = datetime(2026, 11, 24, 12, 0, 30, tzinfo=UTC)
WANTED = JobRequest(
    name="pretrain",
    namespace="team",
    image="registry.example.com/train:1",
    hosts=2,
    nproc=8,
    gpus=8,
    folder="/runs/pretrain",
    claim="runs",
    mount="/runs",
    command=["train.py", "--lr", "3e-4"],
    url="unix:///run/wattmesh-agent/agent.sock",
    socket_dir="/run/wattmesh-agent",
)


def refused(resource: str, made: Any, *place: str | int, value: Any = None) -> str:
    """Say why an object is refused once something in it is another thing."""
    part = made
    for each in place[:-1]:
        part = part[each]
    part[place[-1]] = value
    return schemas.admit(resource, made, None)


@pytest.mark.parametrize("kind", [JOBSET, TRAINJOB], ids=lambda each: each.name)
def test_what_is_rendered_and_what_follows_it_is_as_the_schemas_say(kind: JobKind) -> None:
    """The successor differs in name, size and marks, and is suspended; a misspelt field is seen."""
    made = manifests.job(kind, WANTED)
    assert schemas.admit(kind.plural, made, None) == ""
    known = job_kinds.facts(kind, made)
    assert (known.hosts, known.suspended, known.ended, known.key) == (2, False, False, "")
    made["metadata"] |= {
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "ours": "1"},
    }
    made["status"] = {"conditions": [{"type": "Suspended", "status": "False"}]}
    after = job_kinds.successor(kind, made, 4, RUN, KEY)
    assert schemas.admit(kind.plural, after, None) == ""
    assert set(after) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(after["metadata"]) == {"name", "namespace", "labels", "annotations"}
    assert after["metadata"]["annotations"] == {"ours": "1", "wattmesh/key": KEY}
    held = job_kinds.facts(kind, after)
    assert (held.hosts, held.suspended, held.run, held.key) == (4, True, RUN, KEY)
    assert job_kinds.facts(kind, made).hosts == 2
    again = job_kinds.successor(kind, after, 2, RUN, "plan-2")
    assert again["spec"] == {**manifests.job(kind, WANTED)["spec"], "suspend": True}
    assert refused(kind.plural, after, "spec", "suspended", value=True) != ""


def test_a_name_follows_from_run_and_key_and_never_grows() -> None:
    """The same launch is never made twice, and names of pods stay below 63 letters."""
    first = job_kinds.successor_name("a" * 32, RUN, KEY)
    assert first == job_kinds.successor_name("a" * 32, RUN, KEY)
    assert job_kinds.successor_name(first, RUN, KEY) == first
    assert first != job_kinds.successor_name("a" * 32, RUN, "plan-2")
    assert len(f"{first}-ranks-0-4095-abcde") <= 63
    assert len(alarm.alarm_name(first)) <= 52
    assert re.fullmatch(r"[a-z0-9-]+-w[0-9a-f]{8}", first)


BAD_IMAGES = (
    *("", "a b", "reg/x:", "reg/x@sha256:1", "reg:port/x", "/x", "x//y", "x:a:b"),
    *("http://reg/x", "a" * 513, "x\n", "ü"),
)


@pytest.mark.parametrize(
    "image",
    [
        *("x", "x:1", "reg.io/team/x:v1.2_3-rc", "localhost:5000/x", "a__b/c-d.e"),
        f"Reg.IO:443/x@sha256:{'0f' * 32}",
    ],
)
def test_what_names_an_image_is_rendered(image: str) -> None:
    """As the grammar of image references has it, with a host, a tag, a digest or none."""
    fields = {each: getattr(WANTED, each) for each in WANTED.__dataclass_fields__}
    manifests.check(JobRequest(**fields | {"image": image, "folder": f"{WANTED.mount}/12:30"}))


def test_what_cannot_be_trained_is_not_rendered() -> None:
    """A long name, a folder that is lost with its pod, no ranks: a sentence each."""
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"name": "a" * 33}, "at most 32"),
        *(({"name": each}, "no name of") for each in ("", "Run", "my_run", "a.b", "1a", "a-", "ü")),
        *(({"namespace": each}, "no name of") for each in ("", "my team", "Team")),
        ({"folder": "/tmp/run"}, "nothing else outlives a pod"),
        ({"folder": f"{WANTED.mount}/../run"}, "nothing else outlives a pod"),
        ({"hosts": 0}, "at least 1"),
        ({"hosts": 4097}, "at most 4096"),
        ({"nproc": 65}, "at most 64"),
        ({"gpus": -1}, "--gpus"),
        *(({"claim": each}, "--claim") for each in ("", "Runs", "a_b", "a..b", "a" * 254, "a\n")),
        *(({"account": each}, "--account") for each in ("", "-a", "a/b")),
        *(({"runtime": each}, "--runtime") for each in ("", "Torch", "a b")),
        *(({"image": each}, "--image") for each in BAD_IMAGES),
        *(({"mount": each, "folder": f"{each}/p"}, "--mount") for each in ("/a:b", "/a\tb", "x")),
        ({"mount": "/", "folder": "/p"}, "--mount"),
        ({"folder": f"{WANTED.mount}/a\nb"}, "--checkpoint-dir"),
        *(({"socket_dir": each}, "--socket-dir") for each in ("run", "/", "/run/../etc", "/r:w")),
        *(({"url": each}, "--url") for each in ("https://daemon:1", "unix://x", "unix:///", "x")),
        ({"command": ("a\0b",)}, "zero byte"),
    )
    for change, why in changes:
        fields = {each: getattr(WANTED, each) for each in WANTED.__dataclass_fields__} | change
        with pytest.raises(InputInvalid, match=why):
            manifests.job(JOBSET, JobRequest(**fields))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicatedJobs": [{"replicas": 2}]},
        {"replicatedJobs": [{}, {}]},
        {"replicatedJobs": 1},
    ],
)
def test_a_jobset_whose_ranks_are_not_known_has_no_successor(spec: dict[str, Any]) -> None:
    """Several replicated jobs, or several replicas, are not one pod for each host."""
    job = {"metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(InputInvalid, match="must have one replicated job"):
        job_kinds.successor(JOBSET, job, 1, RUN, KEY)
    assert job_kinds.facts(JOBSET, job).hosts == 0


def test_an_alarm_rings_in_the_minute_before_and_asks_for_no_gpu() -> None:
    """A CronJob knows minutes; one for a minute that has begun would ring a year later."""
    wakes_at = NOW + timedelta(hours=1)
    at = alarm.rings_at(wakes_at, NOW)
    assert alarm.schedule(at) == "0 13 24 11 *"
    assert at <= wakes_at < at + timedelta(minutes=1)
    with pytest.raises(InputInvalid, match="needs longer"):
        alarm.rings_at(NOW + timedelta(minutes=2), NOW)
    made = manifests.job(JOBSET, WANTED)
    held = job_kinds.successor(JOBSET, made, 2, RUN, KEY)["metadata"]
    rings = alarm.alarm(held, job_kinds.pod_template(made), ["python", "-m", "x"], at)
    assert schemas.admit("cronjobs", rings, None) == ""
    pod = rings["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {}}
    assert pod["containers"][0]["command"] == ["python", "-m", "x"]
    assert (
        pod["volumes"]
        == made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"]
    )
    assert rings["metadata"]["name"] == f"{held['name']}-wake"


def installed(name: str) -> list[dict[str, Any]]:
    """The objects of one of the shipped files."""
    found = yaml.safe_load_all((commands.BASE / name).read_text("utf-8"))
    return [each for each in found if each]


def test_the_base_is_whole(tmp_path: Path) -> None:
    """`base` writes it; every file that kustomize is told of is there, and no other."""
    words = [sys.executable, "-m", "wattmesh.integrations.kubernetes", "base", f"--out={tmp_path}"]
    subprocess.run(words, check=True, capture_output=True)
    there = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    told = {"kustomization.yaml"}
    for folder in ("training", "nodes"):
        assert folder in installed("kustomization.yaml")[0]["resources"]
        file = f"{folder}/kustomization.yaml"
        listed = installed(file)[0]
        told |= {file, *(f"{folder}/{each}" for each in listed["resources"])}
        for each in listed.get("configMapGenerator", ()):
            told |= {f"{folder}/{one}" for one in each["files"]}
    assert there == told


def test_the_role_is_of_a_namespace_and_names_every_right() -> None:
    """No cluster-wide right, no wildcard, no secret, no pod."""
    kinds = [each["kind"] for each in installed("training/role.yaml")]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding"]
    rules = installed("training/role.yaml")[1]["rules"]
    resources = {each for rule in rules for each in rule["resources"]}
    assert resources == {"jobsets", "trainjobs", "cronjobs"}
    verbs = {each for rule in rules for each in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "create", "patch", "delete"}
    assert WANTED.account == installed("training/role.yaml")[0]["metadata"]["name"]


def test_only_the_actuator_may_set_anything_and_neither_knows_the_api_server() -> None:
    """No token, no privileged container; what each may do is what its systemd unit says."""
    (daemons,) = (each for each in installed("nodes/daemonset.yaml") if each["kind"] == "DaemonSet")
    pod = daemons["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    agent, actuator = pod["containers"]
    for each in (*pod["initContainers"], agent, actuator):
        rights = each["securityContext"]
        assert rights.get("privileged") is None
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"]["drop"] == ["ALL"]
    assert agent["securityContext"]["capabilities"]["add"] == ["SETUID", "SETGID"]
    unit = (commands.BASE.parents[1] / "systemd" / "wattmesh-actuator.service").read_text()
    bounds = re.search(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert bounds is not None
    names = [f"CAP_{each}" for each in actuator["securityContext"]["capabilities"]["add"]]
    assert names == bounds[1].split()
    journal = {"name": "journal", "mountPath": "/var/lib/wattmesh-actuator"}
    assert journal in actuator["volumeMounts"]
    assert journal not in agent["volumeMounts"]
    volumes = {each["name"] for each in pod["volumes"]}
    for each in (*pod["initContainers"], agent, actuator):
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes


def test_the_shipped_settings_are_settings() -> None:
    """Nothing in them is misspelt."""
    told = tomllib.loads((commands.BASE / "nodes" / "wattmesh.toml").read_text("utf-8"))
    assert Settings(**told).actuator.mode == "observe"


def test_what_the_actuator_set_is_given_back_however_it_ends(tmp_path: Path) -> None:
    """The container's shell, around a program that stands for wattmesh: stopped, and killed."""
    (daemons,) = (each for each in installed("nodes/daemonset.yaml") if each["kind"] == "DaemonSet")
    actuator = daemons["spec"]["template"]["spec"]["containers"][1]
    told = tmp_path / "told"
    program = tmp_path / "wattmesh"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{told}\ncase "$*" in *--restore) exit 0;; esac\n'
        "trap 'exit 7' TERM\nwhile :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    script = f"PATH={tmp_path}:$PATH\n{actuator['args'][0]}"
    for kill in ("kill -TERM $$", "kill -KILL $pid"):
        told.unlink(missing_ok=True)
        hurried = script.replace("pid=$!\n", f"pid=$!\n(sleep 0.3; {kill}) &\n", 1)
        done = subprocess.run(["sh", "-c", hurried], check=False, timeout=60)
        assert done.returncode == (7 if "TERM" in kill else 137)
        settings = "actuator --config /etc/wattmesh/wattmesh.toml"
        assert told.read_text().splitlines() == [settings, f"{settings} --restore"]
