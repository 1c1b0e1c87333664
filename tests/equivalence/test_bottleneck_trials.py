"""Points with narrow dispatch: what a switch to one does, and what their table calls them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equivalence import bottleneck_trials
from benchmarks.equivalence.bottleneck_trials import CONTROL, NEVER, VISITS
from benchmarks.equivalence.job import Arm
from benchmarks.equivalence.run import Runner, lines
from examples.pretrain.config import check_layout, preset
from examples.pretrain.options import parse_layout
from tests.hook.harness import Zygote


def test_a_switch_to_narrow_dispatch_and_back_is_confirmed(zygote: Zygote, tmp_path: Path) -> None:
    """Two ranks that share experts: the state moves bitwise, the probe agrees, bytes fall to 1/4.

    The sabotaged twin of the probe is the session's own: a forward pass that changed rolls back.
    """
    sending = bottleneck_trials.SENDING
    layouts = [sending, f"{sending},{bottleneck_trials.NARROW}"]
    arm = Arm(
        folder=str(tmp_path / "arm"),
        preset="tiny-narrow",
        dtype="fp32",
        steps=3,
        boundary_every=1,
        layouts=layouts,
        turns=[(1, 1), (2, 0)],
        count_sent=True,
    )
    Runner(zygote, 0).carry_out("narrow and back", arm)
    assert [each["state"] for each in lines(arm, "ends")] == ["confirmed"] * 2
    assert [each["measured"] for each in lines(arm, "trips")] == [0, 0]
    whole, narrow, again = (each["bytes"] for each in lines(arm, "sent"))
    # Beside rows, each rank tells in each of four layers how many: 8 bytes for each of 4 experts.
    counts = 2 * 4 * 4 * 8
    assert whole - counts == 4 * (narrow - counts) == again - counts > 0


def test_arms_are_trained_in_layouts_that_fit(tmp_path: Path) -> None:
    """Visits end whole; so does the control, which is harmed where it begins to be narrow."""
    for arms in bottleneck_trials.all_arms(tmp_path).values():
        for arm in arms.values():
            for layout in arm.layouts:
                check_layout(preset(arm.preset), parse_layout(layout))
    arms = bottleneck_trials.seed_arms(tmp_path, 0)
    assert arms[VISITS].turns[-1] == (160, 0)
    assert len(arms[VISITS].turns) == 6
    assert arms[CONTROL].turns[-1][1] == 0
    assert [str(at) for at, to in arms[CONTROL].turns if to] == list(arms[CONTROL].meddle)


def write(arm: Arm, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Note lines as a rank would."""
    arm.path.mkdir(parents=True, exist_ok=True)
    (arm.path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def trained(arm: Arm, loss: float) -> None:
    """Pretend that an arm was trained."""
    write(arm, "held", [{"loss": loss}])
    write(arm, "seconds", [{"seconds": 36.0}])
    write(arm, "ends", ({"step": at, "state": "confirmed"} for at, _ in arm.turns))
    write(arm, "trips", ({"step": at, "to": to, "measured": 0} for at, to in arm.turns))
    (arm.path / "done").touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All arms: visits are alike, those that lose what is sent are not."""
    for seed in bottleneck_trials.SEEDS:
        off = {NEVER: 0.0, VISITS: 0.001 * (-1) ** seed, CONTROL: 0.05}
        for name, arm in bottleneck_trials.seed_arms(tmp_path, seed).items():
            trained(arm, 3 + 0.01 * seed + off[name])
    for at, arm in enumerate(bottleneck_trials.sent_arms(tmp_path).values()):
        write(arm, "sent", [{"step": 1, "bytes": 4000 // (1 + 3 * at)}])
        (arm.path / "done").touch()
    return tmp_path


def test_a_point_is_statistical_if_the_models_that_come_out_are_alike(folder: Path) -> None:
    """By V1 and V8 over all seeds; another arm is of no class, and its row says so."""
    rows, goals = bottleneck_trials.bottleneck_rows(folder)
    assert all(goal.ok for goal in goals), goals
    classes = [row["class"] for row in rows if "class" in row]
    assert classes == ["statistical", "none"]
    assert goals[3].value == 0.25


def test_what_is_not_alike_or_was_not_moved_is_seen(folder: Path) -> None:
    """Sabotaged twins: visits that cost, a tensor lost, a control that passes, an arm not done."""
    arms = [bottleneck_trials.seed_arms(folder, seed) for seed in bottleneck_trials.SEEDS]

    def figures() -> list[float | None]:
        return [goal.value for goal in bottleneck_trials.bottleneck_rows(folder)[1]]

    write(arms[0][VISITS], "trips", [{"step": 40, "to": 1, "measured": 3}])
    assert figures()[1] == 3
    for seed, each in zip(bottleneck_trials.SEEDS, arms, strict=True):
        trained(each[VISITS], 3.02 + 0.01 * seed)
        trained(each[CONTROL], 3 + 0.01 * seed)
    p, mismatches, caught, _ = figures()
    assert p is not None
    assert p > 0.05
    assert (mismatches, caught) == (0, 0.0)
    (arms[3][CONTROL].path / "done").unlink()
    assert figures()[:3] == [None, None, None]
