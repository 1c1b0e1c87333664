"""What DeepSpeed's `universal_checkpoint_info` says of names, without a checkpoint."""

import pytest

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.index.rules import Replicate, VocabPad
from wattmesh.reconfig.universal.sources.deepspeed.tensor_rules import read_info


def test_a_vocabulary_in_another_list_is_refused() -> None:
    """Padded rows are cut after slices along another dim are joined, which no rule of ours does."""
    key = "universal_checkpoint_info"
    lists = {"vocabulary_parameter_patterns": ["head"], "original_vocab_size": 5}
    info = read_info({key: lists}, "it", Allowance())
    assert info is not None
    assert info.rule("head.weight").rule == VocabPad(size=5)
    rows = {"parameter_with_row_parallelism_patterns": ["head"]}
    both = read_info({key: lists | rows}, "it", Allowance())
    assert both is not None
    with pytest.raises(InputInvalid, match="no way to hold it that is supported"):
        both.rule("head.weight")


def test_patterns_that_take_for_ever_are_not_run() -> None:
    """A regular expression of a file is refused unless it is a plain one."""
    for pattern in (r"(a+)+$", r".*.*.*.*b", r"[a-z]{1,99}", r"a|b", r"(?=a)", r"\w+", r"a*b"):
        model = {"universal_checkpoint_info": {"tp_replicated_parameter_patterns": [pattern]}}
        unread = read_info(model, "it", Allowance())
        assert unread is not None
        with pytest.raises(InputInvalid, match=r"weight: .*the pattern .*not understood"):
            unread.rule("weight")
    plain = [r"tied_modules.embed.word_embeddings.weight", r"\d+.self_attention.dense.bias", r".*x"]
    model = {"universal_checkpoint_info": {"tp_replicated_parameter_patterns": plain}}
    info = read_info(model, "it", Allowance())
    assert info is not None
    assert type(info.rule("12.self_attention.dense.bias").rule) is Replicate
    assert info.rule("12.mlp.weight").by_default
