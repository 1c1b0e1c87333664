"""The catalogue that profiling would have written for a job."""

from pathlib import Path

from wattmesh.controller.profile.job import ProfileJob
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint
from wattmesh.reconfig.fingerprint import Fingerprint


def catalogue(path: Path, job: ProfileJob, evidence: Evidence = Evidence.MEASURED) -> Path:
    """Write the catalogue that profiling would have written."""
    points = tuple(
        OperatingPoint(
            id=each.id,
            layout=each.layout,
            gpus=each.layout.world_size,
            tokens_per_s=1.0,
            power_w=1.0,
            evidence=evidence,
            fingerprint=Fingerprint(driver="none"),
        )
        for each in job.points
    )
    catalogue_file.save(
        Catalogue(job="trained", tokens_total=1, reference="A", points=points), path
    )
    return path
