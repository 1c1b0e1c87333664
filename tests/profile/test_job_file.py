"""The job file: what it needs, and every mistake at once."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wattmesh.controller.profile.job import fill, read_job
from wattmesh.controller.profile.launch import filled
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.profile_folder import ProfileFolder

EXAMPLE = Path("examples/pretrain/profile.toml")


def test_the_examples_job_file_is_read() -> None:
    """The file that ships beside the example names three layouts and runs from the root."""
    job = read_job(EXAMPLE)
    assert (job.directory / "examples" / "pretrain").is_dir()
    assert [point.id for point in job.walk] == ["A", "B", "C"]
    assert job.walk[0].layout == Layout(dp_shard=2, tp=2)
    assert job.steps == 3 * job.steps_per_point
    assert job.tokens_per_step == job.global_batch * job.seq_len


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    """Commands without their places, points that do not fit, unknown keys: one list."""
    path = tmp_path / "job.toml"
    path.write_text(
        """
        [job]
        name = "x"
        command = []
        power = "guess"
        processes = 2
        reference = "Z"
        tokens_per_step = -1
        speed = 3
        [power]
        volts = 12
        url = "file:///etc/passwd"
        [[point]]
        id = "A"
        layout = { tp = 4 }
        [[point]]
        id = "A"
        layout = { tp = 4 }
        colour = "red"
        """
    )
    with pytest.raises(SettingsInvalid) as caught:
        read_job(path)
    assert {key for key, _ in caught.value.mistakes} == {
        "job.command",
        "job.reference",
        "job.tokens_per_step",
        "job.speed",
        "job.power",
        "power.volts",
        "power.url",
        "point[0].layout",
        "point[1].layout",
        "point[1].id",
        "point[1].colour",
    }


def test_a_host_is_not_asked_for_more_processes_than_it_can_start(tmp_path: Path) -> None:
    """Neither they nor a folder that is not there get as far as a launch."""
    path = tmp_path / "job.toml"
    text = EXAMPLE.read_text()
    wrong = text.replace("processes = 4", "processes = 100000000000")
    path.write_text(wrong.replace('directory = "../.."', 'directory = "gone"'))
    with pytest.raises(SettingsInvalid) as caught:
        read_job(path)
    assert dict(caught.value.mistakes) == {
        "job.processes": "100000000000 is more than this host can run, 1024",
        "job.directory": f"{tmp_path / 'gone'} is no folder",
    }


@pytest.mark.parametrize("content", [b"\xff", b"[job", b"a = " + b"[" * 100_000])
def test_what_is_no_toml_is_said_so(tmp_path: Path, content: bytes) -> None:
    """Garbage and hostile nesting end in one sentence with the path."""
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(InputInvalid, match=r"job\.toml is not TOML"):
        read_job(path)
    with pytest.raises(InputInvalid, match="cannot be read"):
        read_job(tmp_path / "gone.toml")


def test_places_are_filled_and_other_braces_left() -> None:
    """A command may hold braces of its own."""
    words = fill(["--out", "{losses}/{x}", "{steps}"], {"losses": "a", "steps": "7"})
    assert words == ["--out", "a/{x}", "7"]


def test_a_catalogue_is_not_written_over_something_else(tmp_path: Path) -> None:
    """The job file itself stays, and nothing is started."""
    path = tmp_path / "job.toml"
    text = Path("examples/fsdp2/profile.toml").read_text()
    path.write_text(text)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "wattmesh.controller.cli.main"),
            *("configs", "profile", str(path), "--out", str(path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "is there and is no catalogue" in done.stderr
    assert path.read_text() == text
    assert [*tmp_path.iterdir()] == [path]


def test_a_command_that_takes_a_seed_is_given_each_launch_s(tmp_path: Path) -> None:
    """0 where a launch has none of its own; another command takes none."""
    job = read_job(EXAMPLE)
    assert not job.takes_seed
    seeded = replace(job, command=("train.py", "--seed={seed}"))
    assert seeded.takes_seed
    for each, words in ((seeded, "--seed=0"), (replace(seeded, seed=3), "--seed=3")):
        assert filled(each, each.command, ProfileFolder(tmp_path)) == ["train.py", words]
