"""Running the job of `job`: launched by the zygote, supervised where it is killed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hook.harness import Zygote, _Forked
from tests.huggingface.job import Has
from wattmesh.reconfig.launcher.supervisor import Launch, Supervisor

PATIENCE_S = 150.0
"""A busy machine takes its time; nothing waits for this long when all is well."""


class MovedRun:
    """One run: a folder, what the job has, and what it wrote."""

    def __init__(self, zygote: Zygote, folder: Path, nproc: int = 4, **has: Any) -> None:
        """Prepare a run of `nproc` ranks in `folder`."""
        self.nproc = nproc
        self.zygote = zygote
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        self.checkpoints = folder / "ck"
        self.has = Has(folder=str(self.checkpoints), out=str(self.out), **has)
        self.said: list[str] = []

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the ranks (the supervisor's launcher protocol)."""
        merged = {"HF_JOB": self.has.to_text(), **environment}
        number = self.zygote.start(self.nproc, merged, self.out, "tests.huggingface.job:main")
        return _Forked(self.zygote, number)

    def once(self) -> int:
        """Launch once and wait; gives the exit status."""
        environment = {"HF_JOB": self.has.to_text()}
        number = self.zygote.start(self.nproc, environment, self.out, "tests.huggingface.job:main")
        return self.zygote.wait(number, PATIENCE_S)

    def supervised(self) -> int:
        """Run under the supervisor to the end; gives its exit status."""
        return Supervisor(self, self.checkpoints, say=self.said.append).run()

    def lines(self) -> list[dict[str, Any]]:
        """What the leading rank wrote of each step."""
        path = self.out / "steps.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def losses(self) -> dict[int, float]:
        """The loss per step; of a step that was done again, the later one."""
        return {line["step"]: line["loss"] for line in self.lines()}

    def layouts(self) -> list[str]:
        """The layouts trained in, one after the other."""
        names = [line["layout"] for line in self.lines()]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def average(self) -> float:
        """The number that the average of the parameters came to in the end."""
        return float((self.out / "ema").read_text())

    def switches(self) -> list[list[Any]]:
        """Of every ordered switch of the last launch: its step, how it ended, and why."""
        found: list[list[Any]] = json.loads((self.out / "switches.json").read_text())
        return found

    def log(self) -> str:
        """What all ranks wrote to stderr."""
        logs = sorted(self.out.glob("rank-*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in logs)
