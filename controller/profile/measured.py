"""Turns what was measured into a catalogue. Pure.

Invariant: a number that was not measured says so in `sources`; evidence is `measured` and never
more.
"""

from collections.abc import Sequence
from dataclasses import replace

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.measuring.probes import probe_evidence
from wattmesh.controller.profile.results import MeasuredPoint, MeasuredSwitch, ProfileState
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.catalogue import (
    Catalogue,
    Evidence,
    OperatingPoint,
    PairCost,
    PowerScope,
    Release,
    SwitchCost,
)
from wattmesh.reconfig.fingerprint import Fingerprint

MOST_SPENDS = 64
"""Newest switches whose spends a catalogue keeps."""


def catalogue_of(job: ProfileJob, progress: ProfileState) -> Catalogue:
    """Write down every point that has numbers.

    Raises:
        InputInvalid: the reference has none, so nothing can be compared with it.
    """
    if progress.point(job.reference) is None:
        why = progress.refused.get(job.reference, "it was never trained")
        raise InputInvalid(f"the reference {job.reference} could not be measured: {why}")
    found = [
        (point, measured)
        for point in job.points
        if (measured := progress.point(point.id)) is not None
    ]
    idle_w = idle_power_w(job, progress)
    return Catalogue(
        job=job.name,
        tokens_total=job.tokens_total,
        reference=job.reference,
        points=tuple(_point(job, point, measured, progress) for point, measured in found),
        release=job.release,
        power_scope=PowerScope(progress.scope),
        idle_power_w_per_gpu=round(idle_w or 0.0, 2),
        embodied_g_per_gpu_hour=job.embodied_g_per_gpu_hour,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        switch=switch_cost(
            progress.switches, assumed=any(each.power_source == "assumed" for _, each in found)
        ),
        simulated=_simulated([each for _, each in found]),
    )


def with_proofs(found: Catalogue, before: Catalogue) -> Catalogue:
    """Keep the proofs of an older catalogue where what was proven is what was measured now.

    The same job, reference, layout and clock, and every part of the fingerprint that was known
    then is known now and the same; of the reference as well, for a proof is a comparison with it.
    """
    jobs = [(each.job, each.reference, each.global_batch, each.seq_len) for each in (found, before)]
    if jobs[0] != jobs[1] or not _is_proven_now(found.point(found.reference), before):
        return found
    points = tuple(
        _with_proof(each, before.point(each.id)) if _is_proven_now(each, before) else each
        for each in found.points
    )
    return replace(found, points=points)


def _is_proven_now(point: OperatingPoint, before: Catalogue) -> bool:
    old = next((each for each in before.points if each.id == point.id), None)
    if old is None or old.evidence is not Evidence.VALIDATED:
        return False
    then, now = old.fingerprint or Fingerprint(), point.fingerprint or Fingerprint()
    same = then.known and then.to_dict().items() <= now.to_dict().items()
    return same and (old.layout, old.clock_mhz) == (point.layout, point.clock_mhz)


def _with_proof(point: OperatingPoint, old: OperatingPoint) -> OperatingPoint:
    return replace(
        point,
        equivalence=old.equivalence,
        evidence=old.evidence,
        validated_at=old.validated_at,
        validated_by=old.validated_by,
        proven_as=old.proven_as,
        tolerance=old.tolerance,
    )


def idle_power_w(job: ProfileJob, progress: ProfileState) -> float | None:
    """Return what one GPU draws that the job does not use; None: never read.

    Parked GPUs keep their context, so what they drew beside a smaller layout counts where there was
    one; otherwise, and with `held`, what they drew before the job began.
    """
    parked = [each.parked_w for each in progress.points if each.parked_w is not None]
    gpu_w = progress.idle_gpu_w
    if parked and job.release is Release.PARKED:
        gpu_w = max(parked)
    if progress.idle_host_w is None:
        return gpu_w
    return (gpu_w or 0.0) + progress.idle_host_w / job.processes


def switch_cost(switches: Sequence[MeasuredSwitch], *, assumed: bool) -> SwitchCost:
    """Return what switches cost: the dearest cold one, each pair, and what each one spent.

    `assumed`: whether the watts behind their joules are.
    """
    if not switches:
        return SwitchCost()
    cold = [each for each in switches if each.cold] or list(switches)
    names = dict.fromkeys((each.origin, each.target) for each in switches)
    return SwitchCost(
        # With a handful of switches, the largest is the best estimate of the 95 % quantile.
        layout_s=round(max(each.seconds for each in cold), 3),
        layout_energy_j=round(max(each.energy_j or 0.0 for each in cold), 1),
        source="assumed" if assumed else "measured",
        spends=tuple(each.spend for each in switches if each.spend)[-MOST_SPENDS:],
        pairs=tuple(pair for name in names if (pair := _pair(name, switches)) is not None),
    )


def _pair(name: tuple[str, str], switches: Sequence[MeasuredSwitch]) -> PairCost | None:
    """Return one pair's costs; None where its joules were never read."""
    mine = [each for each in switches if (each.origin, each.target) == name]
    known = [each for each in mine if each.energy_j is not None]
    if not known:
        return None
    cold = next((each for each in known if each.cold), None)
    warm = next((each for each in known if not each.cold), None)
    first = cold or known[0]
    return PairCost(
        origin=name[0],
        target=name[1],
        seconds=round(first.seconds, 3),
        energy_j=round(first.energy_j or 0.0, 1),
        warm_s=None if warm is None else round(warm.seconds, 3),
        warm_energy_j=None if warm is None else round(warm.energy_j or 0.0, 1),
    )


def _simulated(found: Sequence[MeasuredPoint]) -> tuple[str, ...]:
    """List the numbers that come from a model of a device."""
    names = []
    if any(each.speed_source == "simulated" for each in found):
        names.append("tokens_per_s")
    if any(each.power_source == "simulated" for each in found):
        names += ["power_w", "idle_power_w_per_gpu", "switch.layout_energy_j"]
    return tuple(names)


def _point(
    job: ProfileJob, point: Candidate, one: MeasuredPoint, progress: ProfileState
) -> OperatingPoint:
    sources = {"tokens_per_s": one.speed_source, "power_w": one.power_source}
    if one.memory_gib is not None:
        sources["memory_gib"] = "measured"
    found = OperatingPoint(
        id=point.id,
        layout=point.layout,
        clock_mhz=point.clock_mhz,
        gpus=point.layout.world_size,
        tokens_per_s=round(one.tokens_per_s, 2),
        power_w=round(one.power_w, 2),
        gpu_power_w=_rounded(one.gpu_power_w),
        # Where only the host is read, its watts hold whatever GPUs it has.
        host_power_w=None if one.gpu_power_w is None else _rounded(one.host_power_w),
        parked_power_w=_rounded(one.parked_w),
        memory_gib=one.memory_gib,
        samples=one.samples,
        spread=round(one.share, 4),
        speed_spread=round(one.speed_share, 4),
        dominated_by=one.dominated_by,
        evidence=Evidence.MEASURED,
        sources=sources,
        fingerprint=_fingerprint(job, progress, one),
    )
    return replace(found, probe=probe_evidence(progress.evidence.get(point.id, {})))


def _fingerprint(job: ProfileJob, progress: ProfileState, one: MeasuredPoint) -> Fingerprint | None:
    """Return what a point was measured on, as far as the driver and the job say."""
    driver = Fingerprint()
    if progress.driver:
        driver = Fingerprint(
            gpu_models=f"{job.processes} x {progress.models}" if progress.models else None,
            vbios=progress.vbios or None,
            driver=progress.driver,
            topology=f"1 x {job.processes} ranks",
        )
    found = driver.with_known(Fingerprint.from_dict(one.computes_with))
    return found if found.known else None


def _rounded(watts: float | None) -> float | None:
    return None if watts is None else round(watts, 2)
