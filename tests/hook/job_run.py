"""A run of one of the tests' own jobs: launched by the zygote, supervised where it is killed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.hook.harness import Zygote, _Forked
from wattmesh.reconfig.launcher.supervisor import Launch, Supervisor

PATIENCE_S = 150.0
"""A busy machine takes its time; nothing waits for this long when all is well."""


class JobRun:
    """One run: a folder, what the job has, and what it wrote.

    Attributes:
        entry: what every rank runs. `variable`: through which it is told what it has.
        steps: name of the file that it writes a line to for each step.
        has: what the job has; `to_text` writes it for the environment.
    """

    entry: ClassVar[str]
    variable: ClassVar[str]
    steps: ClassVar[str]
    has: Any

    def __init__(self, zygote: Zygote, folder: Path, nproc: int) -> None:
        """Prepare a run of `nproc` ranks in `folder`."""
        self.zygote = zygote
        self.nproc = nproc
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        self.checkpoints = folder / "ck"
        self.said: list[str] = []

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the ranks (the supervisor's launcher protocol)."""
        return _Forked(self.zygote, self._start(environment))

    def once(self) -> int:
        """Launch once and wait; gives the exit status."""
        return self.zygote.wait(self._start({}), PATIENCE_S)

    def supervised(self) -> int:
        """Run under the supervisor to the end; gives its exit status."""
        return Supervisor(self, self.checkpoints, say=self.said.append).run()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What the job wrote to a file of lines."""
        path = self.out / f"{name}.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def trained(self) -> list[dict[str, Any]]:
        """What was written of each step, in order."""
        return self.lines(self.steps)

    def losses(self) -> dict[int, float]:
        """The loss per step; of a step that was done again, the later one."""
        return {line["step"]: line["loss"] for line in self.trained()}

    def layouts(self) -> list[str]:
        """The layouts trained in, one after the other."""
        names = [line["layout"] for line in self.trained()]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def log(self) -> str:
        """What all ranks wrote to stderr."""
        logs = sorted(self.out.glob("rank-*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in logs)

    def _start(self, environment: Mapping[str, str]) -> int:
        told = {self.variable: self.has.to_text(), **environment}
        return self.zygote.start(self.nproc, told, self.out, self.entry)
