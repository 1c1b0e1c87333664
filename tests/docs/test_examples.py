"""Examples in the pages are what our own readers accept."""

import re
import tomllib
from pathlib import Path

import pytest

from wattmesh.controller.profile.job import read_job
from wattmesh.controller.settings.read import parse
from wattmesh.errors import FixInput
from wattmesh.reconfig import catalogue_file

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def test_catalogue_example_is_a_catalogue(tmp_path: Path) -> None:
    """The catalogue page shows a file that the daemon reads, a job file, settings, and a search."""
    example, settings, job, search = _blocks(REPOSITORY / "docs" / "catalogue.md", "toml")
    sizes = job.replace('power = "auto"', "global_batch = 64\nseq_len = 1")
    assert sizes != job
    for text in (job, f"{sizes}\n{search}"):
        (tmp_path / "job.toml").write_text(text)
        found = read_job(tmp_path / "job.toml")
        assert [point.id for point in found.points] == ["A", "B"]
        assert (found.search is not None) == (search in text)
    catalogue = catalogue_file.parse(example.encode(), "docs/catalogue.md")
    assert [point.id for point in catalogue.points] == ["A", "B"]
    (tmp_path / "catalogue.toml").write_text(example)
    near = settings.replace("/home/me/catalogue.toml", str(tmp_path / "catalogue.toml"))
    assert near != settings
    assert parse(near, where=tmp_path / "wattmesh.toml").mode.value == "act"


def test_spoilt_example_is_caught() -> None:
    """Sabotaged twin: the same example with one key misspelt is refused."""
    example, *_ = _blocks(REPOSITORY / "docs" / "catalogue.md", "toml")
    with pytest.raises(FixInput, match="power_watts"):
        catalogue_file.parse(example.replace("power_w ", "power_watts ").encode(), "spoilt")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_parse(page: Path) -> None:
    """Every Python and TOML example in a page is at least Python and TOML."""
    for example in _blocks(page, "python"):
        compile(example, str(page), "exec")
    for example in _blocks(page, "toml"):
        tomllib.loads(example)
