"""Files that matter are written whole or not at all."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattmesh.durable import publish_folder, write_bytes, write_text


def test_content_is_replaced_and_no_temporary_file_stays(tmp_path: Path) -> None:
    """The folder holds the file and nothing else."""
    target = tmp_path / "state"
    write_text(target, "old")
    write_text(target, "new")
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["state"]


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    """A size limit on files stands for the full disk: the write fails half way."""
    target = tmp_path / "state"
    write_bytes(target, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_bytes(target, b"x" * 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


WRITER = """
import sys
from pathlib import Path
from wattmesh.durable import write_bytes
target, n = Path(sys.argv[1]), 0
while True:
    n += 1
    write_bytes(target, (b"%08d" % n) * 4096)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    """Kill -9 at any moment: a reader sees one version, never a mixture."""
    target = tmp_path / "state"
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(target)])
        deadline = time.monotonic() + 20
        before = target.stat().st_mtime_ns if target.exists() else 0
        while time.monotonic() < deadline:
            if target.exists() and target.stat().st_mtime_ns != before:
                break
        writer.kill()
        writer.wait()
        content = target.read_bytes()
        assert content == content[:8] * 4096


def test_a_published_folder_is_never_replaced(tmp_path: Path) -> None:
    """A late publisher gets an error and changes nothing."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_text(tmp_path / name / "content", name)
    publish_folder(tmp_path / "one", tmp_path / "final")
    with pytest.raises(FileExistsError, match="was not replaced"):
        publish_folder(tmp_path / "two", tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "one"
