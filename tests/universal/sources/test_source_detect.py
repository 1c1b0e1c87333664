"""Which kind of checkpoint a path is: found and followed, or told what was looked for."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.universal.comparing import differing
from tests.universal.deepspeed_runs import Trained
from tests.universal.exports.scattered import sealed
from tests.universal.sources.test_source_dcp import save, small
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.files.reader import MAX_OPEN
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.sources.detect import locate, open_source
from wattmesh.reconfig.universal.sources.source import WatchedFiles

OWN = {("w", "param"): torch.arange(6.0).reshape(2, 3), ("w", "exp_avg"): torch.ones(2, 3)}


def own(folder: Path) -> Path:
    """A universal checkpoint."""
    trainer = {"header": {"step": 5, "samples": 40, "run": "r"}, "values": {"lr": 1}, "extra": {}}
    return sealed(folder, OWN, trainer)


def test_universal(tmp_path: Path) -> None:
    """Our own checkpoint is opened by its seal; its values and position come along."""
    source = open_source(own(tmp_path / "it"))
    assert (source.kind, source.described) == ("universal", "physical universal checkpoint")
    assert differing(source.index, source.folder, OWN) == []
    assert (source.values, source.position) == ({"lr": 1}, {"step": 5, "samples": 40})
    assert set(source.index.files) <= set(source.files)


@pytest.mark.parametrize("name", ["manifest.json", "COMMIT"])
def test_damaged_universal(tmp_path: Path, name: str) -> None:
    """One that lost its manifest or its COMMIT is still seen for what it was, and refused."""
    folder = own(tmp_path / "it")
    (folder / name).unlink()
    with pytest.raises(CheckpointDamaged, match=name):
        open_source(folder)


def test_universal_with_declarations(tmp_path: Path) -> None:
    """Rules were applied when it was made; applying them again would be wrong."""
    with pytest.raises(InputInvalid, match="applied already"):
        open_source(own(tmp_path / "it"), Declared(tied={"a": "w"}))


def test_dcp(tmp_path: Path) -> None:
    """A DCP folder, and among folders of steps the last one, by number and not by name."""
    for step in ("step-9", "step-10", "step-8"):
        save(tmp_path / step, small())
    (tmp_path / "step-11").mkdir()
    assert locate(tmp_path / "step-9") == (tmp_path / "step-9", "dcp")
    source = open_source(tmp_path)
    assert (source.kind, source.folder) == ("dcp", tmp_path / "step-10")
    shutil.copytree(tmp_path / "step-10", tmp_path / "other-10")
    with pytest.raises(InputInvalid, match="both step 10"):
        open_source(tmp_path)


def test_deepspeed(deepspeed_runs: Trained) -> None:
    """A DeepSpeed folder: the tag itself, or the one above with its `latest`."""
    above = deepspeed_runs.folder / "zero1"
    for path in (above, above / "step2"):
        source = open_source(path)
        assert (source.kind, source.folder) == ("deepspeed", above / "step2")


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("../elsewhere", "not the name of a folder"),
        ("/etc", "not the name of a folder"),
        ("..", "not the name of a folder"),
        ("", "not the name of a folder"),
        ("gone", "'gone', which does not exist"),
        ("empty", "holds no checkpoint"),
    ],
)
def test_latest_that_leads_nowhere(tmp_path: Path, tag: str, words: str) -> None:
    """`latest` names a folder beside it that holds a checkpoint, nothing else."""
    (tmp_path / "it" / "empty").mkdir(parents=True)
    (tmp_path / "it" / "latest").write_text(tag)
    with pytest.raises(InputInvalid, match=words):
        open_source(tmp_path / "it")


def test_nothing(tmp_path: Path) -> None:
    """What is no checkpoint is told what was looked for."""
    with pytest.raises(InputInvalid, match=r"manifest.json.*\.metadata.*zero_pp_rank.*latest"):
        open_source(tmp_path)
    with pytest.raises(InputInvalid, match="no such folder"):
        open_source(tmp_path / "gone")


def test_a_save_that_did_not_end(tmp_path: Path) -> None:
    """Torch writes .metadata last; that it is missing is not that nothing is there."""
    save(tmp_path / "it", small())
    (tmp_path / "it" / ".metadata").unlink()
    with pytest.raises(InputInvalid, match="the save did not end, so take another"):
        open_source(tmp_path / "it")


def test_two_kinds(tmp_path: Path) -> None:
    """A folder that is two things is not guessed about."""
    folder = save(tmp_path / "it", small())
    (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    with pytest.raises(InputInvalid, match="both a dcp and a deepspeed"):
        open_source(folder)


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    """A checkpoint with more files than a process may open is read all the same."""
    ranks = MAX_OPEN + 30
    model = {"module": {}, "param_shapes": [{"w": torch.Size([ranks, 2])}], "shared_params": {}}
    torch.save(model, tmp_path / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    for rank in range(ranks):
        state = {"state": {}, "param_groups": [{"params": [0]}]}
        part = torch.tensor([2.0 * rank, 2.0 * rank + 1])
        held = {"zero_stage": 3, "partition_count": ranks, "optimizer_state_dict": state,
                "fp32_flat_groups": [part]}  # fmt: skip
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": held}, tmp_path / name)
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = open_source(tmp_path)
    whole = torch.arange(2.0 * ranks).reshape(ranks, 2)
    assert differing(source.index, source.folder, {("w", "param"): whole}) == []
    assert len(source.files) == ranks + 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """A file that is another one when it is opened again ends the reading."""
    (tmp_path / "a").write_bytes(b"12")
    with WatchedFiles(tmp_path) as files:
        files.opened("a")
        files.close()
        files.opened("a")
        files.close()
        (tmp_path / "a").write_bytes(b"123")
        with pytest.raises(InputInvalid, match="changed while it was read"):
            files.opened("a")
