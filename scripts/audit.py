"""Known weaknesses of the versions in constraints.txt, as the advisories of osv.dev have them.

    python -m scripts.audit [--file FILE] [--url URL] [--limit-s SECONDS]

Ends with 1 when one is known, and 0 with the sentence "not audited: ..." where the advisories
cannot be had. Invariant: nothing counts as audited that was not looked up.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
ANSWER_LIMIT_S = 10
LIMIT_S = 180.0

AWAY = ("ConnectionError", "Timeout", "ServiceError", "JSONDecodeError", "blocking this service")
"""What pip-audit's last words hold where the service is away, refuses, or is another one."""


def main(words: Sequence[str] | None = None) -> int:
    """Look everything up; give the exit status."""
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--file", type=Path, default=CONSTRAINTS, help="pins to look up")
    parser.add_argument("--url", default="", help="another service that answers as OSV does")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    asked = parser.parse_args(words)
    command = [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(asked.file)),
        *("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"),
        *("--vulnerability-service", "osv", "--timeout", str(ANSWER_LIMIT_S)),
        *(("--osv-url", asked.url) if asked.url else ()),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=asked.limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _not_audited(f"the advisories did not come within {asked.limit_s:g} s")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if any(each in done.stderr for each in AWAY):
            return _not_audited(f"the advisories cannot be had ({last:.200})")
        print(f"the audit failed: {last:.300}", file=sys.stderr)
        return 1
    return _told(found, asked.file)


def _told(found: Sequence[dict[str, Any]], file: Path) -> int:
    """Tell what was found; 1 where that is a weakness, or a package that was not looked up."""
    skipped = [each["name"] for each in found if "skip_reason" in each]
    weak = [each for each in found if each.get("vulns")]
    for each in weak:
        for known in each["vulns"]:
            mended = ", ".join(known["fix_versions"]) or "no version yet"
            print(f"{each['name']} {each['version']}: {known['id']}, mended in {mended}")
    if skipped:
        print(f"not looked up: {', '.join(skipped)}")
    said = f"{len(weak)} with a known weakness" if weak else "no known weakness"
    print(f"audited: {len(found) - len(skipped)} packages of {file.name}, {said}")
    return 1 if weak or skipped or not found else 0


def _not_audited(why: str) -> int:
    print(f"not audited: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
