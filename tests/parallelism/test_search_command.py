"""`wattmesh configs search`: what a person asks for, what is refused, and the screen."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.screens.test_screens import plain
from wattmesh.controller.cli.configs.search.screen import search_json, search_lines
from wattmesh.controller.cli.main import main
from wattmesh.controller.cost_model.asked_search import clusters, from_hugging_face, known_model
from wattmesh.controller.cost_model.fitted import shipped
from wattmesh.errors import InputInvalid
from wattmesh.policies.layout_search.search import megatron_like, search
from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.hardware import CLASSES
from wattmesh.policies.parallelism.model_shape import parameters
from wattmesh.policies.parallelism.presets import PRESETS

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
}


def written(folder: Path, config: Any) -> Path:
    """A config.json."""
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(("name", "count"), [("llama3-8b", 8.03e9), ("llama3-70b", 70.6e9),
    ("llama3.1-405b", 405.8e9), ("gpt3-175b", 175e9), ("qwen3-30b-a3b", 30.5e9),
    ("qwen3-235b-a22b", 235e9), ("deepseek-v3", 671e9), ("kimi-k2", 1026e9),
    ("deepseek-v2", 236e9), ("mixtral-8x22b", 141e9), ("gpt-oss-120b", 117e9),
    ("llama4-maverick", 400e9)])  # fmt: skip
def test_presets_have_as_many_parameters_as_published(name: str, count: float) -> None:
    """To 1.5 %: norms, biases and routers are not counted."""
    assert float(parameters(PRESETS[name])) == pytest.approx(count, rel=0.015)


def test_a_config_of_hugging_face_is_its_preset(tmp_path: Path) -> None:
    """The sizes of a known model, from its config.json."""
    assert from_hugging_face(written(tmp_path, LLAMA)) == PRESETS["llama3-8b"]
    found = from_hugging_face(written(tmp_path, DEEPSEEK))
    assert float(parameters(found)) == pytest.approx(671e9, rel=0.015)
    assert (found.latent, found.dense_layers, found.shared_ffn) == (1.0, 3.0, 2048.0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "not the config.json of a model"),
        (LLAMA | {"model_type": "mamba"}, "'mamba' is not known; known are llama"),
        (LLAMA | {"model_type": ["llama"]}, "is not known"),
        ({key: LLAMA[key] for key in LLAMA if key != "vocab_size"}, "vocab_size is missing"),
        (LLAMA | {"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        (LLAMA | {"hidden_size": -1}, "hidden_size = -1 is no size"),
        (LLAMA | {"hidden_size": 10**12}, "is no size"),
        (LLAMA | {"hidden_size": "4096"}, "is no size"),
        (LLAMA | {"num_hidden_layers": True}, "is no size"),
        (DEEPSEEK | {"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 must be from 1 to"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers = 0 must be from 1 to"),
        (LLAMA | {"vocab_size": 0}, "vocab_size must be at least 1"),
        (LLAMA | {"num_key_value_heads": 0}, "num_key_value_heads = 0 must divide"),
        (LLAMA | {"num_key_value_heads": 7}, "num_key_value_heads = 7 must divide"),
        (LLAMA | {"num_key_value_heads": 64}, "must divide num_attention_heads = 32"),
        (DEEPSEEK | {"num_experts_per_tok": 300}, "must be from 1 to the 256 experts"),
        (DEEPSEEK | {"num_experts_per_tok": 0}, "must be from 1 to the 256 experts"),
    ],
)
def test_a_config_that_says_too_little_is_refused(tmp_path: Path, config: Any, words: str) -> None:
    """Each fault in one sentence that names the key."""
    with pytest.raises(InputInvalid, match="--hf-config") as caught:
        from_hugging_face(written(tmp_path, config))
    assert words in str(caught.value)


def test_a_config_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder, and a file that is too large."""
    (tmp_path / "large").write_bytes(b" " * (2 << 20))
    for path in (tmp_path / "gone", tmp_path, tmp_path / "large"):
        with pytest.raises(InputInvalid, match="--hf-config"):
            from_hugging_face(path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "h100", "0xh100", "-1xh100", "8xv100", "9999999xh100", "8 x h100"),
        *("8xh100,", "8xh100,8xh100", "8xh100,8xa100,8xh200", "8xh100;8xa100"),
    ],
)
def test_a_cluster_that_is_none_is_refused(text: str) -> None:
    """With what to write instead."""
    with pytest.raises(InputInvalid, match="--gpus"):
        clusters(text)
    assert clusters("256xH100") == ((256, CLASSES["h100"]),)
    assert clusters("8xh100, 4xa100") == ((8, CLASSES["h100"]), (4, CLASSES["a100"]))
    with pytest.raises(InputInvalid, match=r"--hf-config, or one of .*llama3-8b"):
        known_model("llama5")


def answered(gpus: int, **changes: Any) -> dict[str, Any]:
    """The JSON of a search."""
    asked: dict[str, Any] = {"shape": PRESETS["llama3-8b"], "global_batch": 64, "seq_len": 8192}
    job = Job(gpus=gpus, gpu=CLASSES["h100"], **asked | changes)
    return search_json(job, search(job, megatron_like(job), shipped()))


def test_the_screen_says_what_is_predicted_and_what_to_do_next() -> None:
    """In 80 columns, every line inside them; and with everything, more lines."""
    answer = answered(8)
    lines = plain(search_lines(answer, 80, everything=False)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("predicted, not measured" in each for each in lines)
    assert any("wattmesh configs profile" in each for each in lines)
    assert len(list(search_lines(answer, 200, everything=True))) > len(lines)
    assert all(each["step_s"] > 0 and each["w_per_gpu"] > 0 for each in answer["points"])


def test_an_empty_space_says_what_empties_it() -> None:
    """GPUs that no degrees multiply to, and a model that no GPU holds."""
    for gpus, batch in ((7 * 11, 1), (7, 1024)):
        none = answered(gpus, global_batch=batch)
        said = " ".join(plain(search_lines(none, 80, everything=False)).split())
        assert "fell to the rule that dp divides the global batch; give another number" in said
        assert answered(gpus, global_batch=7 * 11 * batch)["layouts"], "the rule that emptied it"
    memory = answered(2, shape=PRESETS["llama3.1-405b"])
    said = plain(search_lines(memory, 80, everything=False))
    assert "no layout fits into memory; ask for more GPUs" in said


def test_the_command_searches(capsys: pytest.CaptureFixture[str]) -> None:
    """As a person calls it: a screen, JSON, why a layout is left out, and a model too many."""
    asked = ["configs", "search", "--model", "llama3-8b", "--gpus", "8xh100", "--batch", "64"]
    assert main(asked) == 0
    assert "8 h100" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"] == "predicted"
    assert main([*asked, "--why", "tp16 dp3"]) == 0
    said = capsys.readouterr().out
    assert "tp stays inside a domain of fast links" in said
    assert "48 ranks, not 8" in said
    assert main([*asked, "--why", "dp8"]) == 0
    assert "keeps to every rule" in capsys.readouterr().out
    assert main([*asked, "--hf-config", "config.json"]) != 0
    assert "--model NAME, or by --hf-config FILE" in capsys.readouterr().err
