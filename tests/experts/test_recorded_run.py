"""`wattmesh experts place RUN`: a run's newest recording; hostile files are one sentence."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.experts.test_commands import ROUTING, put, said
from tests.hook.conftest import socket_path
from tests.hook.unix_http import UnixHttp
from wattmesh.controller.cli.main import main
from wattmesh.reconfig.launch.folder import RunFolder, write_json
from wattmesh.reconfig.recorded_routing import write_routing

__all__ = ["socket_path"]

RUN = "5d3cb5a6-0f0a-4a52-9dd7-000000000001"
GROUP = {key: ROUTING[key] for key in ("gpus", "crossing_j")}


class Told(UnixHttp):
    """A daemon that keeps what it is told."""

    def __init__(self, at: Path) -> None:
        """Nothing yet; experts lie by number."""
        self.calls: list[tuple[str, str, Any]] = []
        self.placed: dict[str, Any] = {"placement": [], "known": True, "why": ""}
        super().__init__(at)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Say where experts lie, and do what is asked."""
        if method == "GET":
            return 200, json.dumps(self.placed).encode()
        self.calls.append((method, path, body))
        return 200, json.dumps({"done": "it will be placed"}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run's folder with a recording."""
    found = RunFolder(tmp_path / "ck")
    write_json(found.run_file, {"run": RUN, "name": "moe"})
    record(found)
    (tmp_path / "group.json").write_text(json.dumps(GROUP))
    return found


def record(folder: RunFolder, **other: Any) -> None:
    """Write a recording as a job does."""
    told = {"run": RUN, "step": 120, "experts": 4, "chosen": ROUTING["chosen"]} | other
    write_routing(folder.routing_file, **told)


def words(folder: RunFolder, run: str = "moe") -> list[str]:
    """The command."""
    gpus = str(folder.path.parent / "group.json")
    return ["experts", "place", run, "--checkpoint-dir", str(folder.path), "--gpus", gpus]


@pytest.mark.parametrize("run", ["moe", RUN])
def test_a_dry_run_says_what_the_file_would_and_orders_nothing(
    folder: RunFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run: str,
) -> None:
    """By name or id; and the recording is a file for `place FILE`, too."""
    of_file = said(capsys, "experts", "place", put(tmp_path, ROUTING))
    nowhere = ["--dry-run", "--socket", str(tmp_path / "no.sock")]
    of_run = said(capsys, *words(folder, run), *nowhere)
    assert of_run.pop("recorded") == {"run": RUN, "step": 120, "tokens": 40}
    assert of_run == of_file
    path = str(folder.routing_file)
    group = str(tmp_path / "group.json")
    assert said(capsys, "experts", "place", path, "--gpus", group) == of_file
    assert main([*words(folder, run), *nowhere]) == 0
    screen = capsys.readouterr().out
    assert "40 tokens of moe, recorded up to step 120" in screen
    assert "crossings between nodes" in screen
    assert "█" in screen
    record(folder, chosen=[[[0, 1], [2, 3]] * 20] * 2)
    other = said(capsys, *words(folder, run), *nowhere)
    assert other["before"]["crossings"] != of_file["before"]["crossings"]


def test_without_a_dry_run_the_run_is_asked_to_do_it(
    folder: RunFolder,
    tmp_path: Path,
    socket_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its id, whatever other runs are named; what a FILE with --run asks for."""
    at = ["--socket", str(socket_path), "--reason", "less traffic"]
    with Told(socket_path) as daemon:
        assert said(capsys, *words(folder), "--dry-run", *at)["recorded"]["run"] == RUN
        file = ["experts", "place", put(tmp_path, ROUTING), "--run", "moe", *at]
        assert "done" not in said(capsys, *file, "--dry-run")
        assert daemon.calls == []
        assert said(capsys, *words(folder), *at)["done"] == "it will be placed"
        said(capsys, *file)
    (method, path, body), by_file = daemon.calls
    assert (method, path.rpartition("/v1")[2]) == ("POST", f"/runs/{RUN}/placement")
    assert body == by_file[2]
    assert (body["gpus"], body["reason"]) == (4, "less traffic")
    assert main([*words(folder), "--socket", str(tmp_path / "no.sock")]) != 0


def test_a_file_is_compared_with_where_the_runs_experts_lie(
    tmp_path: Path, socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the daemon says; where it does not know, by number, and the answer says so."""
    at = ["--run", "moe", "--socket", str(socket_path)]
    file = ["experts", "place", put(tmp_path, ROUTING), *at]
    with Told(socket_path) as daemon:
        first = said(capsys, *file)
        assert (first["gains"], first["before_is"]) == (True, "by number")
        daemon.placed["placement"] = daemon.calls.pop()[2]["placement"]
        again = said(capsys, *file)
        assert (again["gains"], again["before_is"]) == (False, "as it is")
        assert again["done"].endswith("experts as it is; nothing was ordered")
        assert said(capsys, *file, "--dry-run")["before_is"] == "as it is"
        assert daemon.calls == []
        daemon.placed = {"placement": [], "known": False, "why": "placed in launch 2"}
        unknown = said(capsys, *file)
        assert (unknown["gains"], unknown["before_is"]) == (True, "by number")
        assert unknown["before_is_not_known"] == "placed in launch 2"
        assert main(file) == 0
        assert "with experts by number: placed in launch 2" in capsys.readouterr().out
    assert main([*file, "--dry-run"]) == 0
    assert "the daemon does not say (" in " ".join(capsys.readouterr().out.split())
    assert main(file) != 0


def test_what_gains_nothing_over_what_is_is_not_ordered(
    folder: RunFolder, socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once placed, placing again by the same tokens changes nothing, and no call is made.

    A job that lies badly is still asked, although its experts no longer lie by number.
    """
    at = ["--socket", str(socket_path)]
    with Told(socket_path) as daemon:
        assert said(capsys, *words(folder), *at)["gains"] is True
        ordered = daemon.calls.pop()[2]["placement"]
        header = folder.checkpoint(130) / "trainer.json"
        write_json(header, {"header": {"placement": ordered}})
        again = said(capsys, *words(folder), *at)
        assert again["gains"] is False
        assert again["before"] == again["after"]
        assert again["before"]["crossings"] == 0
        assert again["done"].endswith("experts as it is; nothing was ordered")
        assert main([*words(folder), *at]) == 0
        assert "AS IT IS" in capsys.readouterr().out
        assert daemon.calls == []
        write_json(header, {"header": {"placement": [[1, 0, 3, 2]] * 2}})
        assert said(capsys, *words(folder), *at)["gains"] is True
        assert len(daemon.calls) == 1


def sentence_of(capsys: pytest.CaptureFixture[str], command: list[str]) -> str:
    """Run what must fail, and give its one sentence."""
    assert main(command) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "a bug" not in told.err
    return told.err


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        (lambda data: None, r"no recording of its routing yet; .*record_routing\(session, routers"),
        (lambda data: data[:-40], "is no JSON"),
        (lambda data: b"", "is no JSON"),
        (lambda data: data.replace(b"[0,2]", b"[0,3]", 1), "is damaged: its content is not that"),
        (lambda data: data.replace(b'"experts":4', b'"experts":5'), "is damaged"),
        (lambda data: data.replace(b'"step":120', b'"step":121'), "is damaged"),
        (lambda data: data.replace(b"sha256", b"sha255"), "is damaged"),
        (lambda data: b"\xff" + data, "is no JSON"),
        (lambda data: json.dumps(ROUTING).encode(), "was not recorded by a job"),
        (lambda data: b'{"recorded": {}}', "is damaged"),
        (lambda data: b"[" * 100_000, "is no JSON"),
    ],
)
def test_a_recording_that_is_not_whole_is_one_sentence(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], spoilt: Any, sentence: str
) -> None:
    """Missing, cut off, flipped, of another kind."""
    data = spoilt(folder.routing_file.read_bytes())
    folder.routing_file.unlink()
    if data is not None:
        folder.routing_file.write_bytes(data)
    assert re.search(sentence, sentence_of(capsys, [*words(folder), "--dry-run"]))


@pytest.mark.parametrize("seed", range(12))
def test_any_flipped_byte_is_found_or_changes_nothing(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """It says what it said, or one sentence."""
    good = said(capsys, *words(folder), "--dry-run")
    data = bytearray(folder.routing_file.read_bytes())
    data[len(data) * seed // 12] ^= 1 << seed % 7
    folder.routing_file.write_bytes(data)
    status = main([*words(folder), "--dry-run", "--json"])
    told = capsys.readouterr()
    assert (status == 0 and json.loads(told.out) == good) or told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"run": "another"}, f"was recorded by the run 'another', not by '{RUN}'"),
        ({"chosen": []}, "chosen must be a list"),
        ({"chosen": None}, "chosen must be a list"),
        ({"chosen": [7]}, "chosen must be a list"),
        ({"chosen": [[[0, 9]]]}, "none of the 4"),
        ({"experts": 10**9}, "whole number from 1 to"),
    ],
)
def test_a_forged_recording_is_one_sentence(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], other: dict[str, Any], sentence: str
) -> None:
    """Its checksum is right, and it is of another run, or no routing."""
    record(folder, **other)
    assert sentence in sentence_of(capsys, [*words(folder), "--dry-run"])


def test_a_recording_of_other_experts_than_the_run_now_has_is_refused(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the placement in the newest checkpoint; the older one does not count."""
    good = [[3, 2, 1, 0], [0, 1, 2, 3]]
    write_json(folder.checkpoint(100) / "trainer.json", {"header": {"placement": good}})
    assert main([*words(folder), "--dry-run"]) == 0
    capsys.readouterr()
    other = [[*range(6)]] * 2
    write_json(folder.checkpoint(120) / "trainer.json", {"header": {"placement": other}})
    told = sentence_of(capsys, [*words(folder), "--dry-run"])
    assert "2 layers of 4 experts, and the run's newest checkpoint has 2 layers of 6" in told
    write_json(folder.checkpoint(120) / "trainer.json", {"header": {"placement": "none"}})
    assert main([*words(folder), "--dry-run"]) == 0


def test_what_is_misnamed_is_one_sentence(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No folder, another run's, none of a run, GPUs that are missing or given twice."""
    place = ["experts", "place"]
    assert "give --checkpoint-dir" in sentence_of(capsys, [*place, "moe", "--dry-run"])
    assert f"is of the run 'moe' ('{RUN}')" in sentence_of(capsys, words(folder, "other"))
    elsewhere = [*place, "moe", "--checkpoint-dir", str(tmp_path / "none")]
    assert "is no run's folder" in sentence_of(capsys, elsewhere)
    write_json(folder.run_file, {"run": 7, "name": "moe"})
    assert "is no run's folder" in sentence_of(capsys, words(folder))
    folder.run_file.unlink()
    os.mkfifo(folder.run_file)
    assert "is no run's folder" in sentence_of(capsys, words(folder))
    folder.run_file.unlink()
    write_json(folder.run_file, {"run": RUN, "name": "moe"})
    assert "leave it out" in sentence_of(capsys, [*words(folder), "--run", "moe"])
    assert "give the GPUs of the group with --gpus" in sentence_of(capsys, words(folder)[:-2])
    twice = [*place, put(tmp_path, ROUTING), "--gpus", str(tmp_path / "group.json")]
    assert "both have 'crossing_j'" in sentence_of(capsys, twice)
    routing = [*words(folder)[:-1], put(tmp_path, ROUTING)]
    assert "has 'chosen'; it may have" in sentence_of(capsys, routing)
