"""Models of transformers through layouts: the losses of the same functions without any of it.

What they are compared with is trained in one process, on the whole model, by torch alone.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hook.harness import Zygote, worst_difference
from tests.huggingface.job import alone
from tests.huggingface.running import MovedRun

EXACT = 1e-12
"""In fp64. Measured: 3e-16."""

ROUNDED = 1e-3
"""Products in bf16, against fp32. Measured: 2e-4."""


@pytest.fixture(scope="module")
def llama(ranks: Zygote, tmp_path_factory: pytest.TempPathFactory) -> MovedRun:
    """Tied embeddings, half as many heads of keys: dp4, dp2 tp2, killed there, and on to dp2."""
    run = MovedRun(
        ranks,
        tmp_path_factory.mktemp("llama"),
        layers=2,
        turns=[(1, "dp2 tp2"), (3, "dp2")],
        steps=5,
        kill_at=3,
    )
    assert run.supervised() == 0, run.log()
    return run


def test_a_llama_goes_through_three_layouts_is_killed_and_trains_what_it_would_alone(
    llama: MovedRun,
) -> None:
    """Schedule, accumulation, clipping and the average of the parameters go with it."""
    assert llama.layouts() == ["dp4", "dp2 tp2", "dp2"], llama.log()
    losses, average = alone(llama.has)
    assert worst_difference(llama.losses(), losses) <= EXACT
    assert abs(llama.average() / average - 1) <= EXACT


def test_the_step_that_was_lost_is_done_again(llama: MovedRun) -> None:
    """In the layout it was killed in, from the checkpoint before."""
    assert any("launching again from step 2" in line for line in llama.said), llama.said
    assert [line["step"] for line in llama.trained()] == [1, 2, 3, 3, 4, 5]
    assert llama.switches() == [[3, "confirmed", ""]]


def test_a_qwen_with_norms_of_its_heads_goes_from_replicas_to_tp4_and_back(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Embeddings apart; a vocabulary that four ranks cannot share evenly; torch's fused AdamW."""
    run = MovedRun(
        ranks,
        tmp_path,
        kind="qwen3",
        tied=False,
        layout="rep2 tp2",
        turns=[(1, "tp4"), (2, "dp2 tp2")],
        steps=3,
        optimizer="fused",
    )
    assert run.once() == 0, run.log()
    assert run.layouts() == ["rep2 tp2", "tp4", "dp2 tp2"], run.log()
    losses, average = alone(run.has)
    assert worst_difference(run.losses(), losses) <= EXACT
    assert abs(run.average() / average - 1) <= EXACT


def test_mixed_precision_is_moved_and_a_pipeline_is_refused_in_a_sentence(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Products in bf16 of fp32 parameters; an order to pp2 is taken back, and it trains on.

    All its heads share one of keys, so that attention stays whole on each tp rank.
    """
    run = MovedRun(
        ranks,
        tmp_path,
        nproc=2,
        kind="mistral",
        layout="tp2",
        turns=[(1, "dp2"), (2, "pp2")],
        steps=3,
        dtype="float32",
        mixed=True,
        heads=(8, 1),
        whole_attention=True,
    )
    assert run.once() == 0, run.log()
    assert run.layouts() == ["tp2", "dp2"], run.log()
    (_, first, _), (_, second, why) = run.switches()
    assert (first, second) == ("confirmed", "rolled_back")
    assert "the layout pp2 has pp = 2; a model is moved over dp_replicate, dp_shard and tp" in why
    assert 0 < worst_difference(run.losses(), alone(run.has)[0]) <= ROUNDED


def test_a_gradient_scaler_goes_along_and_is_not_moved_to_tp(ranks: Zygote, tmp_path: Path) -> None:
    """It doubles every second step, through a switch and a kill; its losses are those without."""
    run = MovedRun(
        ranks,
        tmp_path,
        nproc=2,
        layout="dp2",
        turns=[(1, "rep2"), (3, "tp2")],
        steps=4,
        kill_at=3,
        scaled=True,
    )
    assert run.supervised() == 0, run.log()
    assert run.layouts() == ["dp2", "rep2"], run.log()
    scales = {line["step"]: line["scale"] / 2.0**20 for line in run.trained()}
    assert scales == {1: 1, 2: 2, 3: 2, 4: 4}
    (_, end, why), *_ = run.switches()
    assert end == "rolled_back"
    assert "the GradScaler 'scaler' is not moved to tp2" in why
    assert worst_difference(run.losses(), alone(run.has)[0]) <= EXACT


def test_bf16_parameters_dropout_and_fp32_copies_go_on_bit_for_bit_after_a_kill(
    ranks: Zygote, tmp_path: Path
) -> None:
    """The lost step is done again with the same masks, from the optimizer's copies, unrounded."""
    run = MovedRun(
        ranks,
        tmp_path,
        nproc=2,
        kind="mistral",
        layout="dp2",
        turns=[(1, "tp2")],
        steps=3,
        kill_at=3,
        dtype="bfloat16",
        optimizer="master",
        dropout=0.5,
    )
    assert run.supervised() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2"], run.log()
    lost, again = (line["loss"] for line in run.trained() if line["step"] == 3)
    assert lost == again
    without, _ = alone(replace(run.has, dropout=0.0))
    assert worst_difference(run.losses(), without) > ROUNDED  # so the masks were there


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        ("skewed", "llama", "read samples 1 to 8; the steps since the last check were for"),
        ("unsummed", "qwen3", "ranks hold different values under the name"),
    ],
)
def test_a_run_that_reads_or_sums_otherwise_is_ended_at_its_next_save(
    ranks: Zygote, tmp_path: Path, spoil: str, kind: str, words: str
) -> None:
    """The sabotaged twins: tp reads one sample late; norms of heads keep their own gradients."""
    run = MovedRun(ranks, tmp_path, nproc=2, kind=kind, layout="tp2", steps=2, spoil=spoil)
    assert run.once() != 0
    assert words in run.log()


def test_a_model_that_comes_untied_is_seen_by_its_losses(ranks: Zygote, tmp_path: Path) -> None:
    """The sabotaged twin of the comparison: nothing but the tie is broken, and not at once."""
    run = MovedRun(ranks, tmp_path, nproc=2, layout="tp2", steps=2, spoil="untied")
    run.once()
    assert worst_difference(run.losses(), alone(run.has)[0]) > EXACT
