"""V3: every step consumed the right samples, each the right number of times. Pure.

Invariant: the order within a step does not matter, because a sum has none; a repeated sample or one
of another step does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.verdict import Verdict

Samples = Mapping[int, Mapping[int, int]]
"""From step to sample id to its count."""


def merge(by_rank: Iterable[Iterable[int]], *, copies: int) -> dict[int, int]:
    """Merge what all ranks consumed in one step.

    Args:
        by_rank: sample ids per rank.
        copies: number of ranks that share the same samples (the pp, cp and tp ranks of one data
            coordinate): `world_size // data_parallel`.

    Returns:
        The count of each sample; -1 where ranks that should share it do not, so that its total is
        not a multiple of `copies`.

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
