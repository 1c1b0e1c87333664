"""What a fresh Python process has loaded: the truth behind the import laws."""

import json
import subprocess
import sys

HEAVY = frozenset({"torch", "numpy", "scipy", "matplotlib", "alembic", "typer", "rich"})
"""What the daemon never loads: memory and start-up time of others' work."""


def loaded_after(statements: str) -> frozenset[str]:
    """Run `statements` in a fresh process; name the top-level packages it then holds."""
    report = "import json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{statements}\n{report}"],
        check=True,
        capture_output=True,
        text=True,
    )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return frozenset(name.partition(".")[0] for name in names)
