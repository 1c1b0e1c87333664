"""On a real GPU: what must not depend on the device does not."""

import pytest
import torch

from examples.pretrain.config import preset
from examples.pretrain.train import Metrics, build_state, probe, train_step
from wattmesh.integrations.pytorch.dropout import bits
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


def test_dropout_draws_the_same_masks_on_every_device() -> None:
    """64-bit products wrap on a GPU as they do on the host."""
    samples_B, positions_S = torch.arange(1 << 40, (1 << 40) + 6), torch.arange(100)
    host = bits(64, 5, 3, samples_B, positions_S)
    device = bits(64, 5, 3, samples_B.cuda(), positions_S.cuda())
    assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
@pytest.mark.usefixtures("one_rank")
def test_the_example_trains_alike_on_a_gpu_and_on_the_host(name: str) -> None:
    """Ten steps in fp64: losses and the probe differ by rounding."""
    config = preset(name, dtype="fp64")
    runs = [_losses(build_state(config, Layout(), device=each)) for each in ("cpu", "cuda")]
    assert runs[1] == pytest.approx(runs[0], rel=1e-12)


def _losses(state: State) -> list[float]:
    found = []
    for _ in range(10):
        done: Metrics = train_step(state)
        found.append(done.loss)
        state.position = Position(
            step=state.position.step + 1, samples=state.position.samples + done.samples
        )
    return [*found, probe(state)]
