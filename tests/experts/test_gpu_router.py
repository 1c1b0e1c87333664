"""The router on a real GPU: the choices of the host, one compiled graph, and its overhead."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from benchmarks.experts import overhead as expert_overhead
from tests.experts.test_router import COSTS, batches, router
from wattmesh.integrations.pytorch.experts.router import RouterMode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


@pytest.mark.parametrize("mode", list(RouterMode))
def test_it_chooses_on_a_gpu_as_on_the_host(mode: RouterMode) -> None:
    """In fp64, over steps that move the bias: equal experts and counts, weights to rounding."""
    host = router(mode).double()
    device = copy.deepcopy(host).cuda()
    for each in (host, device):
        each.set_costs(COSTS, 0.1)
    for x in (each.double() for each in batches(4)):
        here, there = host(x), device(x.cuda())
        assert torch.equal(here.chosen_NP, there.chosen_NP.cpu())
        torch.testing.assert_close(here.weights_NP, there.weights_NP.cpu(), rtol=1e-12, atol=0)
        assert torch.equal(host.counts_X, device.counts_X.cpu())
        host.rebalance(host.counts_X.clone())
        device.rebalance(device.counts_X.clone())
        assert torch.equal(host.bias_X, device.bias_X.cpu())


@pytest.mark.parametrize("mode", list(RouterMode))
def test_without_costs_every_mode_is_off_to_the_bit_on_a_gpu(mode: RouterMode) -> None:
    """In bf16, as models are trained."""
    off, other = (router(each).cuda().bfloat16() for each in (RouterMode.OFF, mode))
    for x in batches(2, 4096):
        a, b = off(x.cuda().bfloat16()), other(x.cuda().bfloat16())
        assert torch.equal(a.chosen_NP, b.chosen_NP)
        assert torch.equal(a.weights_NP, b.weights_NP)


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
@pytest.mark.parametrize("mode", list(RouterMode))
def test_it_compiles_into_one_graph_on_a_gpu(mode: RouterMode) -> None:
    """By inductor, with gradients: new costs and biases compile nothing anew."""
    found = router(mode).cuda()
    counter = CompileCounter()
    counted = torch.compile(found, backend=counter, fullgraph=True)
    compiled = torch.compile(copy.deepcopy(found), fullgraph=True)
    for x in batches(2):
        counted(x.cuda())
        compiled(x.cuda()).weights_NP.sum().backward()
        found.set_costs(COSTS, 0.3)
    assert counter.frame_count == 1


def test_its_overhead_on_a_gpu_is_a_few_per_cent() -> None:
    """The benchmark runs on the device; what it measured is printed, and only absurd ones fail."""
    rows = expert_overhead.overhead_rows(device="cuda")
    print(rows)
    assert all(row["router_overhead"] < 1.0 for row in rows)
