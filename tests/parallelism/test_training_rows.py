"""Rows of text become columns, or stay out with a sentence that says why."""

import csv
from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parallelism.rows import RIGHT, Row, read, row
from wattmesh.policies.parallelism.parameters import prior_logarithms, unpack
from wattmesh.policies.parallelism.row_fields import Row as AnyRow
from wattmesh.policies.parallelism.step_time import step_time
from wattmesh.policies.parallelism.training_rows import NEEDED, TrainingRows, read_rows

MOE = {"experts": "8", "topk": "2", "moe_ffn": "1024"}


def reason(one: AnyRow) -> str:
    """Read a row between two right ones: they stay, it does not; say why."""
    found = read_rows([RIGHT, one, RIGHT])
    assert found.kept.tolist() == [0, 2]
    assert len(found.tags) == len(np.asarray(found.setups.layout.gpus)) == 2
    (index,) = found.excluded
    assert index == 1
    return found.excluded[1]


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("how", ["absent", "empty", "blank"])
def test_what_is_needed_and_missing_is_named(name: str, how: str) -> None:
    """A column that is not there, empty, or blank."""
    one = {each: text for each, text in RIGHT.items() if each != name}
    if how != "absent":
        one[name] = "" if how == "empty" else " \t"
    assert reason(one) == f"{name} is missing"


NUMBERS = (
    *("layers", "hidden", "heads", "kv_heads", "vocab", "seq_len", "num_gpus"),
    *("tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch"),
)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("wrong", ["two", "-1", "inf", "1e400", "2000000000", "0x8", "1,5"])
def test_what_is_no_size_is_quoted(name: str, wrong: str) -> None:
    """Words, negative and endless numbers."""
    told = reason(row(**{name: wrong}))
    assert told == f"{name} must be a number from 0 to 1e9, not {wrong!r}"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("wrong", ["0", "1.5", "0.5"])
def test_what_is_no_whole_number_is_quoted(name: str, wrong: str) -> None:
    """Half a rank, no layers."""
    assert reason(row(**{name: wrong})) == f"{name} must be a whole number from 1, not {wrong!r}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu": "TPU v5"}, "no GPU is known as 'TPU v5'; known are a100, a100-100g, a100-40gb"),
        ({"tp": "3"}, "tp * pp * cp = 6 does not divide 64 GPUs"),
        ({"tp": "128"}, "tp * pp * cp = 256 does not divide 64 GPUs"),
        ({"pp": "64", "tp": "1"}, "pp is 64, of 32 layers"),
        ({"pp": "2", "vpp": "18"}, "pp * vpp is 36, of 32 layers"),
        ({"kv_heads": "7"}, "kv_heads = 7 does not divide 32 heads"),
        ({"heads": "6", "hidden": "4098", "kv_heads": "6", "tp": "4"}, "tp = 4 does not divide 6"),
        (MOE | {"ep": "16"}, "ep = 16 does not divide 8 experts"),
        (MOE | {"experts": "96", "ep": "3"}, "ep = 3 does not divide the 32 GPUs of a pipeline"),
        (MOE | {"topk": "9"}, "topk is 9, of 8 experts"),
        (MOE | {"topk": ""}, "a model with experts needs topk and moe_ffn"),
        (MOE | {"moe_ffn": ""}, "a model with experts needs topk and moe_ffn"),
        (MOE | {"experts": "7.5"}, "experts must be a whole number, not 7.5"),
        (MOE | {"moe_ffn": "wide"}, "moe_ffn must be a number from 0 to 1e9, not 'wide'"),
        ({"ffn": ""}, "ffn is missing"),
        ({"ffn": "-3"}, "ffn must be a number from 0 to 1e9, not '-3'"),
        ({"gated_mlp": "2"}, "gated_mlp must be 0 or 1, not 2"),
        ({"zero": "7"}, "zero must be 0, 1, 2 or 3, not 7"),
        ({"zero": "1.5"}, "zero must be 0, 1, 2 or 3, not 1.5"),
        ({"recompute": "maybe"}, "recompute must be none, selective or full, not 'maybe'"),
        ({"precision": "int3"}, "precision must be a 16, 8 or 4 bit format, not 'int3'"),
        ({"precision": "fp32"}, "precision must be a 16, 8 or 4 bit format, not 'fp32'"),
        ({"global_batch": "8"}, "dp * micro_batch = 16 is more than global_batch, 8"),
        ({"layers": "=cmd|' /C calc'!A0"}, 'layers must be a number from 0 to 1e9, not "=cmd'),
        ({"layers": "3\x002"}, r"layers must be a number from 0 to 1e9, not '3\x002'"),
        (dict.fromkeys(RIGHT, ""), "layers is missing"),
    ],
)
def test_what_contradicts_itself_says_so(changes: Row, why: str) -> None:
    """One sentence each, with the numbers."""
    assert reason(row(**changes)).startswith(why)


@pytest.mark.parametrize("name", ["gpu", "layers", "recompute", "precision", "tp"])
def test_a_reason_is_short_whatever_stands_in_a_field(name: str) -> None:
    """A million characters, and a million digits that are a number."""
    for long in ("x" * 10**6, "1." + "5" * 10**6):
        assert len(reason(row(**{name: long}))) < 250


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "h100"},
        {"gpu": " H100-80GB-SXM "},
        {"recompute": "Full"},
        {"recompute": ""},
        {"precision": "BF16"},
        {"precision": ""},
        {"zero": ""},
        {"kv_heads": ""},
        {"layers": "32.0"},
        {"layers": " 32 "},
        {"model": "=HYPERLINK(1)"},
    ],
)
def test_what_is_only_written_otherwise_is_read(changes: Row) -> None:
    """Our GPU names and published ones, capital letters, blanks, defaults."""
    read(row(**changes))


@pytest.mark.parametrize("nothing", ["NaN", "nan", "N/A", "<NA>", "None", "null", "-", " ? "])
def test_what_programs_write_for_nothing_is_nothing(nothing: str) -> None:
    """A needed field is missing; any other has its default."""
    assert reason(row(layers=nothing)) == "layers is missing"
    optional = ("kv_heads", "gated_mlp", "experts", "topk", "moe_ffn", "vpp", "cp", "ep", "zero")
    named = ("recompute", "precision", "framework", "notes")
    for name in (*optional, *named):
        empty, said = read(row(**{name: ""})), read(row(**{name: nothing}))
        assert said.tags == empty.tags, name


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"gpu": "NVIDIA H100 80GB HBM3"}, {}),
        ({"gpu": "H100_SXM5"}, {}),
        ({"gpu": "nvidia-h100-sxm-80gb"}, {}),
        ({"gpu": "h100-80gb-sxm"}, {}),
        ({"gpu": "NVIDIA A100-SXM4-40GB"}, {"gpu": "a100-40gb"}),
        ({"gpu": "NVIDIA B200 180GB"}, {"gpu": "b200"}),
        ({"gpu": "GB200 NVL72"}, {"gpu": "gb200"}),
        ({"gpu": "gb200"}, {"gpu": "GB200"}),
        ({"recompute": "core_attn"}, {"recompute": "selective"}),
        ({"recompute": "Block"}, {"recompute": "full"}),
        ({"recompute": "False"}, {"recompute": "none"}),
        ({"gated_mlp": "False"}, {"gated_mlp": "0"}),
        ({"zero": "FSDP2"}, {"zero": "3"}),
        ({"zero": "ZeRO-2"}, {"zero": "2"}),
        ({"framework": "MEGATRON-BRIDGE / nemo 26.02", "gpu": "gb200"}, {"gpu": "GB200"}),
        ({"model": "our-llama"}, {}),
        ({"notes": "lora rank 16"}, {"notes": "LoRA"}),
    ],
)
def test_other_words_for_the_same_are_the_same(changes: Row, same: Row) -> None:
    """As drivers, clouds and other tables write them; a model is known by its sizes."""
    said, known = read(row(**changes)), read(row(**same))
    assert said.tags == known.tags
    assert seconds(said) == seconds(known)


def seconds(rows: TrainingRows) -> float:
    """Give the predicted seconds of the first row's step."""
    return float(np.asarray(step_time(rows.setups, unpack(prior_logarithms())).total_s)[0])


@pytest.mark.parametrize("gpu", ["H100 PCIe", "H100 NVL", "A100-PCIE-40GB", "MI300X", "80GB"])
def test_a_gpu_with_other_links_is_none_of_ours(gpu: str) -> None:
    """Cards of the same name in other forms, and GPUs that nobody measured."""
    assert reason(row(gpu=gpu)).startswith(f"no GPU is known as {gpu!r}; known are a100, ")


def test_a_known_model_under_another_name_keeps_what_columns_do_not_say() -> None:
    """DeepSeek-V3 by its sizes has latent attention and a shared expert; other sizes have not."""
    sizes = {"hidden": 7168, "heads": 128, "kv_heads": 128, "layers": 61, "ffn": 18432, "pp": 1}
    moe = {"experts": 256, "topk": 8, "moe_ffn": 2048, "ep": 32}
    named, ours = (read(row(**sizes, **moe, model=name)) for name in ("deepseek-v3", "ds 671b"))
    assert float(np.asarray(ours.setups.shape.latent)[0]) == 1
    assert seconds(ours) == seconds(named)
    other = read(row(**sizes, **moe | {"moe_ffn": 1024}, model="ds 671b"))
    assert float(np.asarray(other.setups.shape.latent)[0]) == 0


@pytest.mark.parametrize(
    ("changes", "years"),
    [
        ({"framework": "Megatron-Bridge / NeMo 26.02.01"}, 26 + 2 / 12 + 1 / 40),
        ({"framework": "NeMo", "notes": "eos_n8_ngc24.04_nemo; median"}, 24 + 4 / 12),
        ({"framework": "NeMo", "source": "dgxc-benchmarking v25.05 README"}, 25 + 5 / 12),
        ({"framework": "NeMo", "notes": "loss 25.05 after 24.04 hours"}, 0.0),
        ({"framework": "NeMo", "notes": "v25.13"}, 0.0),
        ({"framework": "NeMo 25.09", "notes": "ngc24.04"}, 25 + 9 / 12),
    ],
)
def test_a_release_is_read_where_it_is_named(changes: Row, years: float) -> None:
    """In the software's name, else in notes or source, where a bare number is no release."""
    assert read(row(**changes)).tags[0].release_years == pytest.approx(years)


def test_experts_with_a_capacity_wait_for_no_count() -> None:
    """Tokens dropped: launches of a small step take less; a dense model does not care."""
    moe = {"experts": 8, "topk": 2, "moe_ffn": 512, "seq_len": 512}
    assert seconds(read(row(**moe, notes="tokendrop"))) < seconds(read(row(**moe)))
    assert seconds(read(row(notes="tokendrop"))) == seconds(read(row()))


def test_every_row_is_kept_or_excluded() -> None:
    """Whatever text stands in its fields."""
    texts = st.one_of(
        st.text(max_size=6),
        st.sampled_from(["", "1", "2", "8", "0", "-1", "nan", "1e400", "full", "h100", "٣", "1_0"]),
    )
    counts = {"kept": 0, "excluded": 0}

    @given(st.lists(st.dictionaries(st.sampled_from(sorted(RIGHT)), texts, max_size=2), max_size=6))
    def every(changes: list[Row]) -> None:
        found = read_rows([RIGHT | each for each in changes])
        assert sorted([*found.kept.tolist(), *found.excluded]) == list(range(len(changes)))
        assert all(found.excluded.values())
        counts["kept"] += len(found.kept)
        counts["excluded"] += len(found.excluded)

    every()
    assert min(counts.values()) > 10


def test_a_reason_stays_in_one_line_of_a_table() -> None:
    """Line ends and quotes in a wrong value come escaped."""
    told = reason(row(recompute='a"b\r\n,c'))
    assert "\n" not in told
    text = StringIO()
    csv.writer(text).writerow([told])
    assert next(csv.reader(StringIO(text.getvalue()))) == [told]
