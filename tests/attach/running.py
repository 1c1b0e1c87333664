"""Running the job of `user`: launched by the zygote, under the real supervisor if it restarts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.attach.jobs.user import Has
from tests.hook.harness import Zygote, _Forked
from wattmesh.reconfig.launcher.supervisor import Launch, Supervisor

PATIENCE_S = 150.0
"""A busy machine takes its time; nothing waits for this long when all is well."""


class UserRun:
    """One run of the job: a folder, what the job has, and what it wrote."""

    def __init__(self, zygote: Zygote, folder: Path, nproc: int, **has: Any) -> None:
        """Prepare a run of `nproc` ranks in `folder`."""
        self.zygote = zygote
        self.nproc = nproc
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        self.checkpoints = folder / "ck"
        self.has = Has(folder=str(self.checkpoints), out=str(self.out), **has)
        self.said: list[str] = []

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the ranks (the supervisor's launcher protocol)."""
        merged = {"USER_JOB": self.has.to_text(), **environment}
        number = self.zygote.start(self.nproc, merged, self.out, "tests.attach.jobs.user:main")
        return _Forked(self.zygote, number)

    def once(self) -> int:
        """Launch once and wait; gives the exit status."""
        merged = {"USER_JOB": self.has.to_text()}
        number = self.zygote.start(self.nproc, merged, self.out, "tests.attach.jobs.user:main")
        return self.zygote.wait(number, PATIENCE_S)

    def supervised(self) -> int:
        """Run under the supervisor to the end; gives its exit status."""
        return Supervisor(self, self.checkpoints, say=self.said.append).run()

    def change(self, **has: Any) -> None:
        """Change what the next launch has."""
        self.has = replace(self.has, **has)

    def tracked(self) -> list[dict[str, Any]]:
        """What the experiment tracker was given, in order."""
        return self._lines("tracker")

    def ends(self) -> list[dict[str, Any]]:
        """What each rank said at its end, by rank."""
        return sorted(self._lines("end"), key=lambda line: int(line["rank"]))

    def losses(self) -> dict[int, float]:
        """The loss per step; of a step that was done again, the later one."""
        return {line["step"]: line["loss"] for line in self.tracked()}

    def layouts(self) -> list[str]:
        """The layouts trained in, one after the other."""
        names = [line["layout"] for line in self.tracked()]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def log(self) -> str:
        """What all ranks wrote to stderr."""
        logs = sorted(self.out.glob("rank-*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in logs)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.out / f"{name}.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]
