"""Maps that make rows narrow: what they give, when, and what they learn by."""

import pytest
import torch

from wattmesh.integrations.pytorch.expert_bottleneck import GAIN, PRACTICE, NarrowMap, practice_loss

ROWS, DIM, FEATURES = 10, 8, 2


def made(*, narrow: bool) -> tuple[NarrowMap, torch.Tensor]:
    """A map with values, and rows that want a gradient."""
    torch.manual_seed(0)
    found = NarrowMap(DIM, FEATURES).double()
    torch.nn.init.normal_(found.weight, std=DIM**-0.5 / GAIN)
    found.narrow, found.tokens = narrow, 5
    return found, torch.randn(ROWS, DIM, dtype=torch.float64, requires_grad=True)


def test_narrow_rows_have_fewer_features_and_come_back_by_the_same_map() -> None:
    """Only in training: evaluation sends rows whole, bit for bit."""
    found, rows = made(narrow=True)
    assert found.pack(rows).shape == (ROWS, FEATURES)
    matrix = GAIN * found.weight
    assert torch.allclose(found.unpack(found.pack(rows)), rows @ matrix.T @ matrix)
    found.eval()
    assert torch.equal(found.unpack(found.pack(rows)), rows)


@pytest.mark.parametrize("narrow", [False, True])
def test_maps_learn_from_their_own_error_at_every_point(narrow: bool) -> None:
    """Rows get the gradient of what was sent alone; narrow maps learn from that, too."""
    found, rows = made(narrow=narrow)
    found.unpack(found.pack(rows)).sum().backward()  # type: ignore[no-untyped-call]
    leaf = found.weight.detach().clone().requires_grad_()
    plain = rows.detach().clone().requires_grad_()
    matrix = GAIN * leaf
    sent = plain @ matrix.T @ matrix if narrow else plain
    (sent.sum() + PRACTICE / 5 * practice_loss(plain.detach(), matrix)).backward()  # type: ignore[no-untyped-call]
    assert found.weight.grad is not None
    assert torch.allclose(found.weight.grad, leaf.grad, rtol=1e-12)  # type: ignore[arg-type]
    assert torch.allclose(rows.grad, plain.grad, rtol=1e-12)  # type: ignore[arg-type]


def test_practice_finds_the_features_that_rows_have() -> None:
    """Rows of two directions pass a map of two features; one that does not learn loses them."""
    found, _ = made(narrow=False)
    directions = torch.randn(FEATURES, DIM, dtype=torch.float64)
    optimizer = torch.optim.Adam(found.parameters(), lr=0.02 / GAIN)
    before = after = torch.zeros(())
    for step in range(300):
        rows = torch.randn(64, FEATURES, dtype=torch.float64) @ directions
        after = practice_loss(rows, GAIN * found.weight).detach() / 64
        before = before if step else after
        found.pack(rows.requires_grad_()).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    assert before > 0.1
    assert after < 1e-3


def test_a_row_of_zeros_or_no_row_is_no_number_to_divide_by() -> None:
    """A rank may get no rows; an expert may give zeros."""
    found, _ = made(narrow=True)
    for rows in (torch.zeros(3, DIM), torch.zeros(0, DIM)):
        found.zero_grad()
        found.unpack(found.pack(rows.double().requires_grad_())).sum().backward()  # type: ignore[no-untyped-call]
        assert found.weight.grad is not None
        assert torch.equal(found.weight.grad, torch.zeros_like(found.weight))
