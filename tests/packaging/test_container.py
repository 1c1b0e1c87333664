"""The container file, judged by its text: no image is built here, which needs a daemon of its own.

Its commands are held to what the repository has: files, program, Python, pinned packages.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from wattmesh.controller.cli.main import main

REPOSITORY = Path(__file__).parents[2]
FILE = (REPOSITORY / "scripts" / "Containerfile").read_text()

KNOWN = {"ARG", "FROM", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Give each instruction with its arguments, comments left out and lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", kept)
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def mistakes(text: str) -> list[str]:
    """Name what is wrong with a container file."""
    found, last = instructions(text), {}
    wrong = [f"{word} is no instruction that we use" for word, _ in found if word not in KNOWN]
    last = dict(found)
    if last.get("USER", "root") in ("root", "0"):
        wrong.append("it runs as root")
    for word, rest in found:
        if word == "FROM" and (":latest" in rest or ":" not in rest):
            wrong.append(f"{rest} is whatever is newest")
        if word == "RUN" and "pip install" in rest:
            wrong += [
                f"{each.strip()} takes what is newest"
                for each in rest.split("&&")
                if "pip install" in each
                and "--require-hashes" not in each
                and "--no-deps" not in each
            ]
        if word in ("ENV", "ARG") and re.search(r"(?i)token|password|secret", rest):
            wrong.append(f"{rest} would be in every copy of the image")
    return wrong


def test_the_container_file_has_no_mistake() -> None:
    """Pinned packages with hashes, no root, no secret, no image that changes by itself."""
    assert mistakes(FILE) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("USER wattmesh", "USER root"),
        (":${PYTHON}-slim", ""),
        ("--require-hashes -r", "-r"),
        ("ARG USER_ID=980", "ARG API_TOKEN"),
        ("COPY hashes.txt", "COPPY hashes.txt"),
    ],
)
def test_mistakes_are_found(before: str, after: str) -> None:
    """The sabotaged twins."""
    assert before in FILE
    assert mistakes(FILE.replace(before, after))


def test_it_fits_the_repository(capsys: pytest.CaptureFixture[str]) -> None:
    """What it copies is there or made by `make package`; what it starts is a command of ours."""
    found = instructions(FILE)
    copied = [rest.split()[:-1] for word, rest in found if word == "COPY" and "--from" not in rest]
    assert copied == [["hashes.txt", "dist/*.whl"]]
    assert (REPOSITORY / "hashes.txt").is_file()
    let_through = (REPOSITORY / ".dockerignore").read_text().split()
    assert let_through == ["*", "!hashes.txt", "!dist/*.whl"]
    made = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    python = next(rest for word, rest in found if rest.startswith("PYTHON=")).partition("=")[2]
    assert tuple(map(int, python.split("."))) >= (3, 11) == (3, 11)
    last = dict(found)
    (program,) = json.loads(last["ENTRYPOINT"])
    assert program in made["scripts"]
    command = json.loads(last["CMD"])
    for word in (command[0], "agent"):
        assert main([word, "--help"]) == 0
    assert "--config" in capsys.readouterr().out
    assert "/var/lib/wattmesh" in last["VOLUME"], "the journal outlives the container"
