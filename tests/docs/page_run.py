"""A run of a page's script: each rank notes its steps, and what it noted is compared."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hook.harness import Zygote, _Forked
from wattmesh.reconfig.launcher.supervisor import Launch, Supervisor


class PageRun:
    """One run of the page's script, and what each rank noted."""

    def __init__(self, zygote: Zygote, job: str, folder: Path, nproc: int, **told: Any) -> None:
        """Prepare it in `folder`."""
        self.zygote, self.job = zygote, job
        self.nproc, self.out = nproc, folder / "out"
        self.out.mkdir(parents=True)
        self.checkpoints = folder / "ck"
        self.said: list[str] = []
        turns = json.dumps(told.pop("turns", []))
        self.environment = {
            "OUT": str(self.out),
            "FOLDER": str(self.checkpoints),
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
        return self.zygote.start(self.nproc, told, self.out, f"{self.job}:{job}")

    def _notes(self) -> dict[int, list[tuple[float, str]]]:
        found: dict[int, list[tuple[float, str]]] = {}
        for path in sorted(self.out.glob("steps-*.jsonl")):
            for line in map(json.loads, path.read_text().splitlines()):
                found.setdefault(line["step"], []).append((line["loss"], line["layout"]))
        return found


def worst(found: Mapping[int, float], wanted: Mapping[int, float]) -> float:
    """Largest relative difference of two loss curves of the same steps."""
    assert set(found) == set(wanted), (found, wanted)
    return max(abs(found[step] / wanted[step] - 1) for step in wanted)
