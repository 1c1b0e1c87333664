"""What is not moved is refused in a sentence, before anything is trained."""

import json

import pytest

from tests.docs.page_run import PageRun
from tests.hook.harness import Zygote

SAID = {
    "two ranks": "has 1 processes and the layout dp2 has 2 ranks (on the CPU it wants",
    "batch": "global_batch_size = 5 is no multiple of gradient_accumulation_steps = 2 times the 1",
    "auto_find_batch_size": "auto_find_batch_size would change the samples of a step",
    "group_by_length": "train_sampling_strategy='group_by_length' follows the number of ranks",
    "average_tokens": "average_tokens_across_devices=False weighs samples by the rank",
    "ignore_data_skip": "ignore_data_skip=True would begin the data again",
    "resume": "resume_from_checkpoint is not heeded",
    "best": "load_best_model_at_end would put another model in place",
    "jit": "enable_jit_checkpoint and the session would both answer SIGTERM",
    "split_batches": "split_batches and dispatch_batches of accelerator_config are not moved",
    "seedable": 'give TrainingArguments accelerator_config={"use_seedable_sampler": True}',
    "stream": "its train_dataset has no length",
    "short": "its 15 samples fill no whole microbatches of 2",
    "own loop": "its class OwnLoop has its own train, and the loop must be Trainer's",
    "own loader": "its train data loader gives 1 samples at a time over all ranks, where 2",
    "own order": "ordered by a WeightedRandomSampler, whose order could not be made again",
    "peft": "adapters of PEFT were never tried",
    "loaded sharded": "its model was sharded where it was loaded",
    "adafactor": "its Adafactor keeps a row and a column for a matrix",
    "adafactor alone": "its Adafactor keeps a row and a column for a matrix",
    "smoothed": "label_smoothing_factor would compare each token with itself",
    "deepspeed": "its DeepSpeed plugin is not moved",
    "fsdp1": "FSDP1 is not moved",
}


@pytest.fixture(scope="module")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process was told of all cases."""
    zygote.load("tests.hf_trainer.moved")
    run = PageRun(zygote, "tests.hf_trainer.refused", tmp_path_factory.mktemp("refused"), 1)
    assert run.once("main") == 0, run.log()
    found: dict[str, str] = json.loads((run.out / "said.json").read_text())
    return found


def test_what_is_plain_is_taken(said: dict[str, str]) -> None:
    """The twin of all refusals; and each case is asked for below."""
    taken = ("plain", "smoothed alone")  # the latter without FSDP2
    assert [said[each] for each in taken] == ["", ""]
    assert set(said) - set(taken) == set(SAID)


@pytest.mark.parametrize("case", SAID)
def test_what_is_not_moved_is_refused(said: dict[str, str], case: str) -> None:
    """By its name, and what to do instead."""
    assert said[case].startswith("Trainer: ")
    assert SAID[case] in said[case]
