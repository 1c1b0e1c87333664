"""From words to exit codes: 0 done, 1 failed with one sentence, 2 misuse."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import facts
from tests.cli.answering import answering, dead_socket
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.runs import quick
from wattmesh.controller.cli.tree import COMMANDS, LONGEST_ABOUT, build

READING: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "runs": ("runs",),
    "decisions": ("decisions",),
    "why": ("why", "llama-8b"),
    "carbon now": ("carbon", "now"),
    "carbon history": ("carbon", "history"),
    "carbon forecast": ("carbon", "forecast"),
}


def answers() -> dict[str, tuple[int, Any]]:
    """Give everything that the reading commands ask for."""
    view = facts.status()
    run = view["runs"][0]
    points = [{**slot, "quality": "measured"} for slot in view["carbon"]["forecast"]]
    return {
        "/v1/status": (200, view),
        "/v1/runs": (200, {"runs": [run]}),
        "/v1/runs/llama-8b/why": (
            200,
            {"run": run, "switches": [facts.switch_row()], "decisions": [facts.decision()]},
        ),
        "/v1/decisions": (200, {"decisions": [facts.decision()]}),
        "/v1/carbon/now": (
            200,
            {"at": view["at"], "carbon": view["carbon"], "accounting": view["accounting"]},
        ),
        "/v1/carbon/forecast": (200, facts.forecast()),
        "/v1/carbon/history": (200, {"signal": "neso:GB", "points": points}),
        "/v1/freeze": (200, {"done": "Froze everything.", "changed": []}),
        "/v1/thaw": (200, {"done": "Thawed everything.", "changed": []}),
        "/v1/agents/n17/retire": (200, {"done": "Retired n17.", "changed": []}),
        "/v1/runs/llama-8b/switch": (200, {"done": "Ordered llama-8b to B.", "changed": []}),
    }


@pytest.mark.parametrize("words", READING.values(), ids=READING)
def test_reading_prints_a_screen_or_the_api_s_json(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every reading command prints a screen without colours, and with --json one JSON value."""
    socket = str(tmp_path / "s")
    with answering(tmp_path / "s", answers()):
        assert main([*words, "--socket", socket]) == 0
        screen = capsys.readouterr().out
        assert main([*words, "--socket", socket, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
    assert screen.strip()
    assert "\x1b" not in screen
    assert isinstance(answer, dict)


@pytest.mark.parametrize("words", READING.values(), ids=READING)
def test_without_a_daemon_one_sentence_says_the_next_step(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A daemon that is gone ends every reading command with 1 and one sentence on stderr.

    `status --json` says so in JSON as well.
    """
    dead_socket(tmp_path / "s")
    assert main([*words, "--socket", str(tmp_path / "s"), "--json"]) == 1
    said = capsys.readouterr()
    told = json.loads(said.out)["daemon"] if words == ("status",) else said.out
    assert told == (said.err.removeprefix("wattmesh: ").rstrip() if words == ("status",) else "")
    assert said.err.startswith("wattmesh: The daemon at ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("name", [*COMMANDS, "nodes token"])
def test_every_command_has_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command and group explains itself with --help, cuts no sentence, and exits 0."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    usage, *lines = capsys.readouterr().out.splitlines()
    assert usage.startswith("Usage: wattmesh")
    assert not [line for line in lines if line.endswith("...") or len(line) > 80]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The first help names every command there is."""
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ("stauts",),
        ("status", "--colour"),
        ("why",),
        ("switch", "llama-8b", "B"),
        ("decisions", "--limit", "0"),
        ("carbon", "history", "--hours", "soon"),
    ],
)
def test_misuse_exits_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that makes no sense exits 2 and says what was expected."""
    assert main(words) == 2
    assert "Usage: wattmesh" in capsys.readouterr().err


def test_operators_ask_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Freeze, thaw and switch post what was asked and print what was done."""
    socket = ("--socket", str(tmp_path / "s"))
    with answering(tmp_path / "s", answers()) as server:
        assert main(["freeze", "--reason", "maintenance", *socket]) == 0
        assert main(["thaw", "llama-8b", *socket]) == 0
        assert main(["switch", "llama-8b", "B", "--reason", "trial", *socket]) == 0
        # Where it is looked for, it is found.
        assert main(["nodes", "retire", "n17", *socket]) == 0
        assert main(["agent", "retire", "n17", *socket]) == 0
    assert [body for _, _, body in server.asked] == [
        {"run": None, "reason": "maintenance"},
        {"run": "llama-8b"},
        {"point": "B", "reason": "trial"},
        {},
        {},
    ]
    assert "Ordered llama-8b to B." in capsys.readouterr().out


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--debug` anywhere on the line adds the traceback, and only then there is one."""
    socket = str(tmp_path / "none")
    assert main(["runs", "--socket", socket, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(["runs", "--socket", socket]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_wrong_time_is_said_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`why --at` refuses what is no time, and says what one looks like."""
    assert main(["why", "llama-8b", "--at", "noon"]) == 1
    assert "write 14:02" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["--socket {}", "--socket={} --config /b", "--json --socket {}"])
def test_the_quick_reader_means_what_the_tree_means(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `status` reads by itself, the tree reads the same; what it cannot read, it leaves."""
    words = form.format(tmp_path / "s").split()
    with answering(tmp_path / "s", answers()):
        asked = quick.read(words)
        assert asked is not None
        quick.report(asked)
        by_itself = capsys.readouterr().out
        with pytest.raises(SystemExit):
            build(["status"])(["status", *words])
        assert capsys.readouterr().out == by_itself


def test_the_quick_reader_leaves_what_is_unusual() -> None:
    """Help, mistakes and abbreviations are for the tree."""
    for unusual in (["--help"], ["--socket"], ["x"], ["--jso"]):
        assert quick.read(unusual) is None


def test_the_list_of_commands_fits_a_narrow_screen_and_imports_none_of_them() -> None:
    """Every command with a whole sentence within 80 columns; nothing heavy is loaded for it."""
    code = (
        "import sys; from wattmesh.controller.cli.main import main; main(['--help']);"
        "heavy = ('numpy', 'pydantic', 'sqlalchemy', 'requests', 'rich', 'torch');"
        "print([each for each in heavy if each in sys.modules])"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    lines = said.splitlines()
    assert lines[-1] == "[]"
    assert all(len(line) <= 80 for line in lines)
    for name, place in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(place.about)}$", said, re.MULTILINE), name
        assert place.about.endswith(".")
        assert len(place.about) <= LONGEST_ABOUT


def test_without_the_extra_every_command_says_what_to_install() -> None:
    """In a training environment no command is "a bug", and none shows a traceback."""
    code = (
        "import sys; from wattmesh.controller.cli.main import main\n"
        "for each in ('typer', 'rich', 'pydantic', 'sqlalchemy'): sys.modules[each] = None\n"
        "for words in (['--help'], ['status'], ['budget'], ['daemon', '--config', 'x'],"
        " ['actuator', '--config', 'x']): print(main(words))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1"] * 5
    said = ran.stderr.splitlines()
    assert len(said) == 5
    assert all("pip install 'wattmesh[daemon]'" in each for each in said), said


def test_a_module_of_our_own_that_is_missing_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The twin: an extra would not bring it."""
    monkeypatch.setitem(sys.modules, "wattmesh.controller.cli.runs.runs", None)
    assert main(["runs"]) == 1
    assert "a bug in wattmesh" in capsys.readouterr().err


def test_status_stays_light(tmp_path: Path) -> None:
    """`status` loads neither typer nor pydantic, sqlalchemy or torch; the process proves it."""
    code = (
        "import sys; from wattmesh.controller.cli.main import main;"
        "main(['status', '--socket', sys.argv[1], '--json']);"
        "print([m for m in ('typer','pydantic','sqlalchemy','torch') if m in sys.modules])"
    )
    with answering(tmp_path / "s", {"/v1/status": (200, facts.status())}):
        ran = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "s")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["status", "status --json", "runs --json"])
def test_a_reader_that_has_seen_enough_is_no_bug(tmp_path: Path, command: str) -> None:
    """`wattmesh status | head -1`: the pipe is closed early, and nothing is said about it."""
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from wattmesh.controller.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with answering(tmp_path / "s", answers()):
        words = [*command.split(), "--socket", str(tmp_path / "s")]
        ran = subprocess.run(
            [sys.executable, "-c", code, *words],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    os.close(write)
    assert (ran.returncode, ran.stderr) == (1, "")


@pytest.mark.parametrize(
    ("number", "before", "status"),
    [
        (signal.SIGHUP, "SIG_DFL", 128 + signal.SIGHUP),
        (signal.SIGTERM, "SIG_DFL", 128 + signal.SIGTERM),
        (signal.SIGHUP, "SIG_IGN", 1),
    ],
)
def test_a_command_that_is_told_to_end_ends_in_order(
    tmp_path: Path, number: signal.Signals, before: str, status: int
) -> None:
    """As after Ctrl-C, when a terminal closes or a scheduler ends it; under nohup it goes on."""
    code = (
        f"import signal, sys; signal.signal({number:d}, signal.{before});"
        "from wattmesh.controller.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        words = [sys.executable, "-c", code, "runs", "--socket", str(tmp_path / "s")]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as command:
            with silent.accept()[0] as asked:
                asked.recv(1)
                command.send_signal(number)
            assert command.wait(60.0) == status


def test_the_daemon_is_a_process_of_its_own(tmp_path: Path) -> None:
    """`wattmesh daemon` becomes the daemon's process: its exit status and its sentence are seen."""
    words = [sys.executable, "-m", "wattmesh.controller.cli.main", "daemon"]
    config = str(tmp_path / "none.toml")
    ran = subprocess.run([*words, "--config", config], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "none.toml has 1 mistake" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_settings_check_names_every_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three mistakes are three lines on stderr and three entries of the JSON; a fix exits 0."""
    file = tmp_path / "w.toml"
    file.write_text('mode = "rule"\n[loops]\ncycle_s = -1\n[power]\nsource = "solar"\n')
    assert main(["settings", "check", str(file), "--json"]) == 1
    said = capsys.readouterr()
    mistakes = json.loads(said.out)["mistakes"]
    assert {each["key"] for each in mistakes} == {"mode", "loops.cycle_s", "power.source"}
    assert "has 3 mistakes" in said.err
    file.write_text('mode = "observe"\n')
    assert main(["settings", "check", str(file)]) == 0


def test_the_sample_settings_are_valid_and_never_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`settings sample FILE` writes a file that `check` accepts, and refuses to replace one."""
    file = tmp_path / "w.toml"
    assert main(["settings", "sample", str(file)]) == 0
    assert main(["settings", "check", str(file)]) == 0
    assert main(["settings", "sample", str(file)]) == 1
    assert "was not touched" in capsys.readouterr().err
