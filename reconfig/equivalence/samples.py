"""V3: every step consumed the samples it should have, each as often as it should. Pure.

Invariant: an order within a step does not matter (a sum has none); a sample twice, or another
step's sample, does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.verdict import Verdict

Samples = Mapping[int, Mapping[int, int]]
"""step -> sample id -> how often."""


def merge(by_rank: Iterable[Iterable[int]], *, copies: int) -> dict[int, int]:
    """Bring together what every rank consumed in one step.

    Args:
        by_rank: sample ids per rank.
        copies: ranks that rightly work on the same samples (those of one data coordinate: pp, cp
            and tp ranks); `world_size // data_parallel`.

    Returns:
        How often each sample was consumed; -1 where its count is no multiple of `copies`, that
        is, where ranks that should share samples do not.

    Raises:
        InputInvalid: `copies` is below 1.
    """
    if copies < 1:
        raise InputInvalid(f"equivalence: copies = {copies} must be 1 or more")
    counts = Counter(sample for rank in by_rank for sample in rank)
    return {
        sample: count // copies if count % copies == 0 else -1 for sample, count in counts.items()
    }


def same_samples(found: Samples, expected: Samples) -> Verdict:
    """V3: compare two runs' samples step by step, as multisets."""
    wrong = sorted(
        step
        for step in set(found) | set(expected)
        if dict(found.get(step, {})) != dict(expected.get(step, {}))
    )
    told = ""
    if wrong:
        here, there = found.get(wrong[0], {}), expected.get(wrong[0], {})
        first = min(each for each in {*here, *there} if here.get(each) != there.get(each))
        told = (
            f"; step {wrong[0]}: sample {first} was consumed {here.get(first, 0)} times "
            f"and should have been {there.get(first, 0)} times"
        )
    return Verdict(
        check="V3",
        name="steps with other samples",
        measured=len(wrong) if expected else float("inf"),
        limit=0,
        sentence=f"{len(wrong)} of {len(expected)} steps consumed other samples{told}",
    )
