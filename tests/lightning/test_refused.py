"""What is not moved is refused in a sentence, before anything is trained."""

import json
from pathlib import Path

import pytest

from tests.docs.page_run import PageRun
from tests.hook.harness import Zygote

SAID = {
    "two ranks": "1 ranks train, and the layout dp2 has others",
    "batch": "global_batch_size = 5 is no multiple of accumulate_grad_batches = 2 times the 1",
    "replicas": "the layout rep2 has dp_replicate = 2; ModelParallelStrategy has a mesh of",
    "recompute": "micro_batch and recompute of a layout are not carried out",
    "ddp": "its strategy is DDP, which is not moved; set strategy=ModelParallelStrategy()",
    "fsdp1": "its strategy is FSDP1, which is not moved",
    "deepspeed": "its strategy is DeepSpeed, which is not moved",
    "one device": "its strategy is one device, which is not moved",
    "device": "it trains on cpu, and the session on cuda",
    "manual": "its module optimizes by itself (automatic_optimization=False)",
    "reading": "its training_step reads the loader by itself (dataloader_iter)",
    "norm": "norm norms by the batch of one device, which follows the layout",
    "no module": "the script gives a dict, which is no LightningModule",
    "resume": "its `fit` has a checkpoint to resume from",
    "requeued": "hpc_ckpt_1.ckpt, and the session resumes from its own",
    "max_time": "max_time ends a run by the clock, at another step in every layout",
    "by the clock": "it validates by the clock (val_check_interval)",
    "overfit": "overfit_batches takes other samples in every layout",
    "reload": "reload_dataloaders_every_n_epochs would change the data",
    "dev run": "fast_dev_run is no training",
    "precision": "precision='16-true' was never tried",
    "averaging": "its callback WeightAveraging copies the sharded model, which torch forbids",
    "scheduler": "its callback GradientAccumulationScheduler changes the samples of a step",
    "brought": "its callback GradientAccumulationScheduler changes the samples of a step",
    "stream": "its train data are ordered by a _InfiniteConstantSampler",
    "two loaders": "its train data come from a list; one torch DataLoader can begin at a sample",
    "weighted": "its train data are ordered by a WeightedRandomSampler",
    "short": "its 15 samples fill no whole batches of 2",
    "no trainer": "the script gives a object, which is no Trainer of Lightning",
    "no tuple": "let it return `trainer, module, loader`",
}

TAKEN = {"plain", "dropping"}


AFTER_STAGE = """self._teardown()
if self.state.fn == TrainerFn.FITTING:
call._call_callback_hooks(self, "on_fit_end")
call._call_lightning_module_hook(self, "on_fit_end")
call._call_teardown_hook(self)
self.state.status = TrainerStatus.FINISHED
self.state.stage = None
return results"""
"""The end of Lightning's own `Trainer._run`, which `LightningUnderSession._end_fit` does."""


@pytest.fixture(scope="module")
def refused(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process was told of all cases, and found in Lightning."""
    zygote.load("tests.lightning.moved")
    run = PageRun(zygote, "tests.lightning.refused", tmp_path_factory.mktemp("refused"), 1)
    assert run.once("main") == 0, run.log()
    return run.out


@pytest.fixture(scope="module")
def said(refused: Path) -> dict[str, str]:
    """The sentences, by case."""
    found: dict[str, str] = json.loads((refused / "said.json").read_text())
    return found


def test_what_lightning_does_after_training_is_what_we_do(refused: Path) -> None:
    """Another version that does more would be seen."""
    found = json.loads((refused / "after_stage.json").read_text())
    assert found == AFTER_STAGE.splitlines()


def test_what_is_plain_is_taken(said: dict[str, str]) -> None:
    """The twins of all refusals; and each case is asked for below."""
    assert {case for case, words in said.items() if not words} == TAKEN
    assert set(said) - TAKEN == set(SAID)


@pytest.mark.parametrize("case", SAID)
def test_what_is_not_moved_is_refused(said: dict[str, str], case: str) -> None:
    """By its name, and what to do instead."""
    assert said[case].startswith("Lightning: ")
    assert SAID[case] in said[case]
