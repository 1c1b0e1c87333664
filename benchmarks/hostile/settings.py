"""The door of the settings: files with one strange value, or with strange bytes, and a day in them.

A file that is accepted is lived with: a whole daemon of it in this process, its clock moved by
hand, one live job, each loop turned, each screen asked for.

Invariant: a crash is any error but a sentence of ours, a turn that a setting ends, or a run that
was held because of one.
"""

import contextlib
import json
import math
import os
import random
import shutil
import socket
import tempfile
import time
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.hostile.readers import peak_mib, reset_peak
from benchmarks.hostile.tried import Cost, Tried
from tests.builders import messages
from tests.builders.journals import empty_journal
from tests.daemon.clocks import SteppedClock
from tests.daemon.process import ask
from tests.daemon.whole.test_life import trace
from wattmesh.controller.daemon.loop_bodies import Housekeeping
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.settings.read import Settings, parse
from wattmesh.controller.settings.text import keys
from wattmesh.errors import WattmeshError
from wattmesh.telemetry.fake_nvml import FakeNvml

SOUND = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[loops]
cycle_s = 60
sample_s = 60
[power]
source = "nvml"
library = "{folder}/gpus/libnvidia-ml.so.1"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
[[site.market_based]]
label = "contract"
g_per_kwh = 0.0
starts = 2026-01-01T00:00:00Z
ends = 2027-01-01T00:00:00Z
[runs.llama-8b]
catalogue = "catalogue.toml"
deadline_after_s = 86400
[budget.cluster]
grams = 9e6
"""

NASTY: tuple[Any, ...] = (
    *(True, False, 0, 1, -1, 2, 2**31, 2**53, 2**63 - 1, 10**30, 10**400),
    *(0.0, 1e-300, 0.5, 1e6, 1e12, 1e300, -1e300, math.inf, -math.inf, math.nan),
    *("", " ", "x", "a\nb", "\u202e", "\x1b[31m", "A" * 100_000, "/dev/null", "/", "~", "../.."),
    *("0.0.0.0:99999", "http://[::1", "sqlite://", "postgresql://x:y@127.0.0.1:1/z", "root"),
    *([], [""], [0], [[]], {}, {"a": 1}, {"a": {"b": []}}, "day", "exact", "agents", "average"),
    *(f"{year}-01-01T00:00:00Z" for year in ("0001", "1969", "2026", "9999")),
)
SCREENS = ("status", "budget", "report", "events", "decisions", "carbon/now", "powercap")
KNOWN = tuple(each.path.replace("<name>", "*") for each in keys())
UNTOUCHED = ("journal.url", "api.socket")
"""What tells where things lie; another place would be another machine's file."""


def measure(seed: int, count: int) -> Tried:
    """Try `count` files."""
    crashes: list[str] = []
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        FakeNvml.create(folder / "gpus", 4, update_ms=0)
        trace(folder)
        (folder / "catalogue.toml").write_text(messages.CATALOGUE)
        for number in range(count):
            how, content = spoilt(random.Random(f"{number} {seed}"), folder)
            words = f"seed {seed} number {number}: {how:.120}"
            before_mib, begin_s = reset_peak(), time.process_time()
            with contextlib.suppress(WattmeshError):
                try:
                    live(parse(content, where=folder / "wattmesh.toml"), folder)
                except WattmeshError:
                    raise
                except Exception as error:
                    crashes.append(f"{words}: {type(error).__name__}: {error!s:.200}")
            mib = max(0.0, peak_mib() - before_mib)
            costs.append(Cost(words, len(content), time.process_time() - begin_s, mib))
    return Tried(door="settings", inputs=count, crashes=tuple(crashes), costs=tuple(costs))


def spoilt(rng: random.Random, folder: Path) -> tuple[str, str]:
    """Give what was changed, and the whole file."""
    sound = SOUND.format(folder=folder)
    if rng.random() < 1 / 8:
        return _strange_text(rng, sound)
    path = rng.choice([each for each in KNOWN if each not in UNTOUCHED])
    value = rng.choice(NASTY)
    table: Any = tomllib.loads(sound)
    whole = table
    *tables, key = path.split(".")
    for each in tables:
        name, many = each.removesuffix("[]"), each.endswith("[]")
        name = next(iter(table)) if name == "*" and table else name
        table = table.setdefault(name, [{}] if many else {})
        table = table[0] if many else table
    table[key] = value
    return f"{path} = {_written(value)}", "\n".join(
        f"{k} = {_written(v)}" for k, v in whole.items()
    )


def _strange_text(rng: random.Random, sound: str) -> tuple[str, str]:
    """Change, cut off or pile up what the file consists of."""
    at = rng.randrange(len(sound))
    return rng.choice(
        [
            ("cut off", sound[:at]),
            ("a strange letter", sound[:at] + chr(rng.choice([0, 7, 0x202E, 0xFFFE])) + sound[at:]),
            ("a line twice", sound + rng.choice(sound.splitlines()) + "\n"),
            ("tables in tables", f"[{'.'.join('a' * 5000)}]\n" + sound),
            ("lists in lists", "a = " + "[" * 50_000 + "\n" + sound),
            ("tables in line", "a = " + "{a=" * 50_000 + "\n" + sound),
            ("many runs", sound + "".join(f"[runs.r{n}]\n" for n in range(5000))),
            ("a number of many digits", f"a = {'9' * 100_000}\n" + sound),
        ]
    )


def _written(value: Any) -> str:
    """Write a value as TOML does."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return "nan" if math.isnan(value) else str(value)
    if isinstance(value, str) and value[:5].endswith("-") and value.endswith("Z"):
        return value  # a moment stands without quotes
    return json.dumps(value)


def live(settings: Settings, folder: Path) -> None:
    """Spend three hours with accepted settings."""
    clock = SteppedClock()
    (folder / "journal.db").write_bytes(empty_journal())
    with _parts(settings, folder, clock) as parts:
        parts.leases.turn()
        parts.api.start()
        parts.sampler.turn()
        _call(settings, "register", messages.register(host=socket.gethostname(), pid=os.getpid()))
        for hour in range(3):
            clock.pass_s(3600.0)
            parts.leases.turn()
            _call(settings, "progress", messages.progress(seq=hour + 1))
            for loop in (parts.sampler, parts.accounts, parts.cycle):
                before = loop.state.bugs
                loop.turn()
                assert loop.state.bugs == before, f"{loop.state.name}: {loop.state.trouble}"
        assert not parts.loop_facts.isolation.count, "a run was held: the settings are to blame"
        Housekeeping(parts.journal, parts.loop_facts).turn()
        PeriodRoll(parts.journal, parts.loop_facts).turn()
        for screen in SCREENS:
            answer = ask(settings.api.socket, "GET", f"/v1/{screen}")
            assert answer.status != 500, f"{screen}: {answer.body}"


@contextlib.contextmanager
def _parts(settings: Settings, folder: Path, clock: SteppedClock) -> Iterator[Parts]:
    parts = Parts(settings, folder / "wattmesh.toml", clock.clock)
    try:
        yield parts
    finally:
        parts.stop()
        for left in {*folder.glob("journal.db*"), *folder.glob("*.lock")}:
            left.unlink()
        shutil.rmtree(folder / "state", ignore_errors=True)


def _call(settings: Settings, what: str, body: dict[str, Any]) -> None:
    answer = ask(settings.api.socket, "POST", f"/v1/runs/{messages.RUN}/{what}", body)
    assert answer.status < 500 or answer.status == 503, f"{what}: {answer.body}"
