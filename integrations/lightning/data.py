"""A DataLoader that Lightning prepared, which begins at a batch of an epoch.

Lightning orders training data by torch's `DistributedSampler`: one permutation for each epoch,
whose every n-th entry is one rank's. Batches of all ranks together are therefore the same samples
in every layout, as long as they fill the same number.

Invariant: the batches of an epoch are the same samples in every layout.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from wattmesh.errors import InputInvalid


class BatchesFrom:
    """A loader's batches of indices, of which the next pass leaves out the first."""

    def __init__(self, whole: BatchSampler) -> None:
        """Leave out none."""
        self.whole, self.skip = whole, 0

    @property
    def sampler(self) -> Any:
        """The order of the samples; Lightning tells it the epoch."""
        return self.whole.sampler

    @property
    def batch_size(self) -> int:
        """Samples of a batch, of one device."""
        return self.whole.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self.whole.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """Give the batches; once, those after the first `skip`."""
        # Only once one is asked for: a loader with workers begins twice, and reads the second time.
        skip, self.skip = self.skip, 0
        yield from islice(self.whole, skip, None)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.whole)


class LoaderOrder:
    """The train loader of one rank, and where in its epochs it begins."""

    def __init__(self, loader: DataLoader[Any], window: int) -> None:
        """Have it give as many samples as this rank's part of `window` has.

        Args:
            loader: prepared by Lightning; see `refused_loader`.
            window: samples of a batch, over all ranks.
        """
        self.loader, self.window = loader, window
        sampler: Any = loader.sampler
        whole: Any = loader.batch_sampler
        whole.batch_size = window // sampler.num_replicas
        self._batches = BatchesFrom(whole)
        # DataLoader forbids to set these; nothing has read them yet.
        vars(loader).update(batch_size=whole.batch_size, batch_sampler=self._batches)

    def begin(self, epoch: int, batch: int) -> None:
        """Have the next pass begin at a batch of an epoch.

        Lightning tells the sampler its epoch only after workers have begun to read.
        """
        sampler: Any = self.loader.sampler
        sampler.set_epoch(epoch)
        self._batches.skip = batch

    def first_samples(self, count: int = 2) -> Any:
        """Collate the first samples of the data set, the same on every rank."""
        data: Any = self.loader.dataset
        return self.loader.collate_fn([data[min(at, len(data) - 1)] for at in range(count)])

    def state_dict(self) -> dict[str, Any]:
        """Say which data these are."""
        sampler: Any = self.loader.sampler
        return {
            "samples": len(sampler.dataset),
            "batch": self.window,
            "seed": int(sampler.seed),
            "shuffled": bool(sampler.shuffle),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Compare with what the run has read so far.

        Raises:
            InputInvalid: it is another data set, batch or order.
        """
        mine = self.state_dict()
        for what, before in state_dict.items():
            if mine[what] != before:
                raise InputInvalid(
                    f"the run's data had {what} = {before}, now it is {mine[what]}; it goes on "
                    "with the same samples in the same order, or as another run."
                )


def refused_loader(loader: Any, window: int, data_parallel: int) -> str:
    """Return in one sentence why a loader cannot begin at a batch of an epoch; "" when it can.

    Args:
        loader: prepared by Lightning.
        window: samples of a batch, over all ranks.
        data_parallel: data parallel ranks.
    """
    if not isinstance(loader, DataLoader):
        return (
            f"its train data come from a {type(loader).__name__}; one torch DataLoader can begin "
            "at a sample"
        )
    if type(loader.sampler) is not DistributedSampler:
        return (
            f"its train data are ordered by a {type(loader.sampler).__name__}, which another "
            "layout could not make again; leave the order to Lightning (use_distributed_sampler)"
        )
    if type(loader.batch_sampler) is not BatchSampler:
        return f"its {type(loader.batch_sampler).__name__} makes batches of its own"
    samples = len(loader.sampler.dataset)  # type: ignore[arg-type]
    mine, batch = -(-samples // data_parallel), window // data_parallel
    found = mine // batch if loader.drop_last else -(-mine // batch)
    if found != samples // window or (samples % window and not loader.drop_last):
        return (
            f"its {samples} samples fill no whole batches of {window}, and Lightning would fill "
            "up the last one otherwise in every layout; leave some out of the data set"
        )
    return ""
