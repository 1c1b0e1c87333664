"""What the example makes in a step lies where the model does, whatever device that is."""

import torch

from examples.pretrain.config import preset
from examples.pretrain.model import LanguageModel
from examples.pretrain.train import expert_counts


def test_a_dense_model_counts_no_experts_on_its_own_device() -> None:
    """The counts are summed in one tensor with the loss: on a GPU they must not be on the host."""
    with torch.device("meta"):
        model = LanguageModel(preset("tiny"))
    counts = expert_counts([model], 4)
    assert counts.device.type == "meta"
    assert counts.numel() == 0
