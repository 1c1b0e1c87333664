"""A loader that begins in the middle of an epoch, as a switch leaves it."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from wattmesh.integrations.lightning.data import LoaderOrder


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_goes_on_where_it_was_and_the_next_one_is_whole(workers: int) -> None:
    """Workers or none: those make torch's loader begin twice."""
    rows: Any = torch.arange(20)
    sampler: Any = DistributedSampler(rows, num_replicas=2, rank=0, shuffle=False)
    loader: Any = DataLoader(rows, batch_size=1, sampler=sampler, num_workers=workers)
    order = LoaderOrder(loader, window=4)
    order.begin(epoch=0, batch=3)
    assert [each.tolist() for each in loader] == [[12, 14], [16, 18]]
    assert [each.tolist() for each in loader][:2] == [[0, 2], [4, 6]]
