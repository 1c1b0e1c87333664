"""Predictions of a job's layouts, corrected by its own measured ones. Pure. Imports SciPy.

Runs of others are left out: they would move all layouts of the job alike. What the job's own
measured layouts say of the others is learned from all runs (`known_errors`): most of an error is
common to a model on a cluster, the rest fades with the distance between layouts.
Invariant: without measured layouts nothing moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.residuals.error_covariance import with_phases
from wattmesh.policies.parallelism.residuals.known_errors import ErrorCorrection, observe
from wattmesh.policies.parallelism.setups import LayoutColumns, Setups, WorkColumns
from wattmesh.policies.parallelism.step_time import StepTime, step_time
from wattmesh.policies.parallelism.training_rows import (
    Tags,
    hardware_columns,
    place_of,
    take_layouts,
)

Array = NDArray[np.float64]

ALARM = 0.1
"""A measured step this much longer or shorter than predicted is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMeasurements:
    """Layouts of a job whose steps were timed at full clock.

    Attributes:
        layout: columns of the n layouts. `seconds`: of a step of each; shape (n,).
    """

    layout: LayoutColumns
    seconds: Array


def own_errors(
    job: Job, work: WorkColumns, model: CostModel, layout: LayoutColumns, own: OwnMeasurements
) -> ErrorCorrection:
    """Predict log(measured / predicted) of layouts, given those of the job that were measured.

    Args:
        job: whose layouts they are.
        work: number format and software.
        model: the fitted cost model.
        layout: columns of the layouts that are asked for.
        own: what was measured; it may be nothing.
    """
    known = model.known_errors[bool(job.shape.experts)]
    errors = np.log(measured_over_predicted(job, work, model, own))
    measured = _tags(job, work, model, own.layout)
    mine = observe(measured, errors, known.habits, trusted=len(own.seconds))
    return mine.correct(_tags(job, work, model, layout))


def measured_over_predicted(
    job: Job, work: WorkColumns, model: CostModel, own: OwnMeasurements
) -> Array:
    """Give by what factor each measured step takes longer than the physics predicts."""
    return np.asarray(own.seconds / np.asarray(_time(job, work, model, own.layout).total_s))


def _time(job: Job, work: WorkColumns, model: CostModel, layout: LayoutColumns) -> StepTime:
    hardware = hardware_columns([job.gpu])
    asked = Setups(shape=job.shape, hardware=hardware, layout=layout, work=work)
    return step_time(asked, model.parameters)


def _tags(job: Job, work: WorkColumns, model: CostModel, layout: LayoutColumns) -> Sequence[Tags]:
    """Tag layouts of one job under one software: they differ in their places only."""
    count = len(np.asarray(layout.tp))
    rows = [take_layouts(layout, np.array([at])) for at in range(count)]
    tags = [
        Tags(
            model="own",
            gpu=job.gpu.name,
            software="own",
            number_format=str(work.number_format),
            release_years=0.0,
            has_experts=float(bool(job.shape.experts)),
            place=place_of(job.shape, each, work),
        )
        for each in rows
    ]
    return with_phases(tags, _time(job, work, model, layout)) if count else tags
