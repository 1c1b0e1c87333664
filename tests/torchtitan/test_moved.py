"""torchtitan's own Trainer through layouts: the losses of the same script without us."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import block, patched
from tests.hook.harness import Zygote, _Forked
from wattmesh.reconfig.launcher.supervisor import Launch, Supervisor

PAGE, HEADING = "docs/trainers.md", "torchtitan"
STEPS = 4
ROUNDED = 2e-6
"""In fp32, sums in another order. Measured: 1e-7."""


class TitanRun:
    """One run of the page's script, and what each rank noted."""

    def __init__(self, zygote: Zygote, folder: Path, nproc: int, **told: Any) -> None:
        """Prepare it in `folder`."""
        self.zygote, self.nproc, self.out = zygote, nproc, folder / "out"
        self.out.mkdir(parents=True)
        self.checkpoints = folder / "ck"
        self.said: list[str] = []
        turns = json.dumps(told.pop("turns", []))
        self.environment = {
            "OUT": str(self.out),
            "FOLDER": str(self.checkpoints),
            "STEPS": str(STEPS),
            "TURNS": turns,
            **told,
        }

    def launch(self, environment: Mapping[str, str], job: str = "moved") -> Launch:
        """Start the ranks (the supervisor's launcher protocol)."""
        return _Forked(self.zygote, self._start(environment, job))

    def once(self, job: str = "moved") -> int:
        """Launch once and wait."""
        return self.zygote.wait(self._start({}, job))

    def supervised(self) -> int:
        """Run under the supervisor to the end."""
        return Supervisor(self, self.checkpoints, say=self.said.append).run()

    def losses(self) -> dict[int, float]:
        """The loss of each step, which every rank that trained it has seen alike."""
        seen = {step: {loss for loss, _ in notes} for step, notes in self._notes().items()}
        assert all(len(each) == 1 for each in seen.values()), seen
        return {step: each.pop() for step, each in seen.items()}

    def layouts(self) -> list[str]:
        """Where each step was trained."""
        return [notes[-1][1] for _, notes in sorted(self._notes().items())]

    def averages(self) -> list[float]:
        """What the average of the parameters came to in the end, on every rank."""
        return [float(each.read_text()) for each in self.out.glob("ema-*")]

    def log(self) -> str:
        """What all ranks wrote to stderr."""
        return "\n".join(f"--- {each.name}\n{each.read_text()}" for each in self.out.glob("*.log"))

    def _start(self, environment: Mapping[str, str], job: str) -> int:
        told = {**self.environment, **environment}
        return self.zygote.start(self.nproc, told, self.out, f"tests.torchtitan.moved:{job}")

    def _notes(self) -> dict[int, list[tuple[float, str]]]:
        found: dict[int, list[tuple[float, str]]] = {}
        for path in sorted(self.out.glob("steps-*.jsonl")):
            for line in map(json.loads, path.read_text().splitlines()):
                found.setdefault(line["step"], []).append((line["loss"], line["layout"]))
        return found


def worst(found: dict[int, float], wanted: dict[int, float]) -> float:
    """Largest relative difference."""
    assert set(found) == set(wanted)
    return max(abs(found[step] / wanted[step] - 1) for step in wanted)


@pytest.fixture(scope="module")
def ranks(zygote: Zygote) -> Zygote:
    """Forks ranks that need not import torchtitan, each for itself."""
    zygote.load("tests.torchtitan.moved")
    return zygote


@pytest.fixture(scope="module")
def alone(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> TitanRun:
    """The script as it is without us, in one process: four microbatches of each step."""
    run = TitanRun(ranks, tmp_path_factory.mktemp("alone"), 1)
    assert run.once("plain") == 0, run.log()
    return run


def test_the_trainer_goes_through_three_layouts_is_killed_and_trains_what_it_would_alone(
    ranks: Zygote, alone: TitanRun, tmp_path: Path
) -> None:
    """Its loader, accumulation, schedule, clipping and an average of a user's own go with it."""
    run = TitanRun(
        ranks,
        tmp_path,
        4,
        LAYOUT="dp2 tp2",
        turns=[[1, "rep2 tp2"], [3, "dp2"]],
        KILL="1",
    )
    assert run.supervised() == 0, run.log()
    assert run.layouts() == ["dp2 tp2", "rep2 tp2", "rep2 tp2", "dp2"], run.log()
    assert any("launching again from step 2" in line for line in run.said), run.said
    assert worst(run.losses(), alone.losses()) <= ROUNDED
    (average,) = alone.averages()
    assert run.averages() == pytest.approx([average] * 2, rel=ROUNDED)
    ends = json.loads((run.out / "switches.json").read_text())
    assert ends == [[3, "confirmed", ""]]


def test_a_loader_that_forgets_its_place_is_seen_by_its_losses(
    ranks: Zygote, alone: TitanRun, tmp_path: Path
) -> None:
    """The sabotaged twin: after the switch the first samples are read again."""
    run = TitanRun(ranks, tmp_path, 2, LAYOUT="tp2", turns=[[1, "1"]], STEPS="2", SPOIL="yes")
    assert run.once() == 0, run.log()
    found, wanted = run.losses(), alone.losses()
    assert abs(found[1] / wanted[1] - 1) <= ROUNDED
    assert abs(found[2] / wanted[2] - 1) > ROUNDED


def test_three_statements_are_added() -> None:
    """However many lines they replace."""
    before = block(PAGE, HEADING)
    after = patched(before, block(PAGE, HEADING, 2))
    old = {ast.unparse(node) for node in ast.parse(before).body}
    added = [node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.stmt)]
    names = [type(node).__name__ for node in added if ast.unparse(node) not in old]
    assert names == ["ImportFrom", "With", "Expr"]
