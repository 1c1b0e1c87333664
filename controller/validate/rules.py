"""What must hold before a job is started to be validated. Pure.

Invariant: nothing is started for a layout that cannot hold the job's batch, or for a catalogue that
is another job's.
"""

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.catalogue import Catalogue, Evidence
from wattmesh.reconfig.fingerprint import Fingerprint

BY_SEEDS = (
    "train it beside the reference over seeds (V8; docs: experts, narrow dispatch), or leave it out"
)


def refused(job: ProfileJob, point: Candidate) -> tuple[str, str]:
    """Say why no launch of a point could prove it, and what to do; "" where one could."""
    if told := indivisible(job, point):
        return told, "leave the point out, or choose another batch"
    return point.layout.other_function(job.walk[0].layout), BY_SEEDS


def indivisible(job: ProfileJob, point: Candidate) -> str:
    """Say what of a job a layout does not divide; "" where it divides all that is known."""
    layout = point.layout
    if job.global_batch and job.global_batch % layout.data_parallel:
        return (
            f"its data parallel degree {layout.data_parallel} does not divide the global batch of "
            f"{job.global_batch}, so it would train another batch"
        )
    share = job.global_batch // layout.data_parallel
    if share and layout.micro_batch and share % layout.micro_batch:
        return (
            f"its micro batch {layout.micro_batch} does not divide the {share} samples of a data "
            "parallel rank"
        )
    if job.seq_len and job.seq_len % layout.cp:
        return f"cp {layout.cp} does not divide samples of {job.seq_len} tokens"
    return ""


def check_agreement(job: ProfileJob, catalogue: Catalogue) -> None:
    """Compare a job file with the catalogue that its proof goes into.

    Raises:
        InputInvalid: they contradict each other.
    """
    pairs = [
        ("name", job.name, catalogue.job),
        ("reference", job.reference, catalogue.reference),
        ("global_batch", job.global_batch, catalogue.global_batch),
        ("seq_len", job.seq_len, catalogue.seq_len),
    ]
    found = [
        f"job.{key} is {mine!r}, the catalogue's is {other!r}"
        for key, mine, other in pairs
        if mine and other and mine != other
    ]
    mine = {each.id: each for each in job.points}
    for point in catalogue.points:
        here = mine.get(point.id)
        if here is not None and here.layout != point.layout:
            found.append(
                f"point {point.id} is {here.layout} in the job file and "
                f"{point.layout} in the catalogue"
            )
    if found:
        raise InputInvalid(
            f"the job file and the catalogue contradict each other: {'; '.join(found)}. Correct "
            "one of them, or profile again"
        )


def unstampable(catalogue: Catalogue, point_id: str, ran: Fingerprint) -> str:
    """Say why a proof cannot go into a catalogue; "" where it can.

    Args:
        catalogue: where the point's numbers are.
        point_id: of the proven point.
        ran: what the proof was made on.
    """
    point = next((each for each in catalogue.points if each.id == point_id), None)
    if point is None:
        return "it is not in the catalogue; measure it by `wattmesh configs profile`"
    if point.evidence not in (Evidence.MEASURED, Evidence.VALIDATED):
        return (
            f"its numbers are {point.evidence}, not measured; measure it by "
            "`wattmesh configs profile`"
        )
    if point.evidence is Evidence.MEASURED and not (point.fingerprint and point.fingerprint.known):
        return (
            "on what it was measured is not known, because it has no fingerprint; measure it here "
            "by `wattmesh configs profile`"
        )
    # What was proven before is proven anew; numbers of another machine stay what they are.
    known = point.fingerprint if point.evidence is Evidence.MEASURED else None
    others = known.differences(ran) if known is not None else ()
    if others:
        return (
            f"it was measured on something else ({'; '.join(others)}); measure it here by "
            "`wattmesh configs profile`"
        )
    return ""
