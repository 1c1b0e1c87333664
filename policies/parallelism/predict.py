"""Predict training steps: the physics, corrected by what was measured nearby. Pure.

Invariant: a measurement of a run moves predictions of like runs towards it, and never widens
their interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.energy import PowerShares, step_energy
from wattmesh.policies.parallelism.memory import memory
from wattmesh.policies.parallelism.parameters import Parameters
from wattmesh.policies.parallelism.residuals.error_covariance import with_phases
from wattmesh.policies.parallelism.residuals.known_errors import KnownErrors
from wattmesh.policies.parallelism.setups import Setups, tokens_per_step
from wattmesh.policies.parallelism.step_time import step_time
from wattmesh.policies.parallelism.training_rows import Tags, TrainingRows

Array = NDArray[np.float64]

NINETY_PERCENT = 1.645
"""Standard deviations on each side that hold nine of ten normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """All that predictions rest on.

    Attributes:
        parameters: of the physics. `shares`: watts by phase.
        known_errors: what was left over in measured runs; of models without experts (False), with
            experts (True). They err in ways of their own.
    """

    parameters: Parameters
    shares: PowerShares
    known_errors: Mapping[bool, KnownErrors]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One entry per configuration; shape (n,) each.

    Attributes:
        step_s: of a step; `low_s`, `high_s`: nine of ten lie between them.
        tokens_per_s_per_gpu: at `step_s`.
        memory_bytes: the fullest rank's peak, without what driver and NCCL hold.
        j_per_token: of the nodes.
        corrected: what measured runs made of the physics' time: a factor.
    """

    step_s: Array
    low_s: Array
    high_s: Array
    tokens_per_s_per_gpu: Array
    memory_bytes: Array
    j_per_token: Array
    corrected: Array


def predict(rows: TrainingRows, model: CostModel) -> Predictions:
    """Predict every configuration of `rows`."""
    time = step_time(rows.setups, model.parameters)
    log_ratio, deviation = _correction(with_phases(rows.tags, time), model.known_errors)
    factor = np.exp(log_ratio)
    step_s = np.asarray(time.total_s) * factor
    spread = np.exp(NINETY_PERCENT * deviation)
    energy = step_energy(rows.setups, time, model.shares)
    tokens = np.asarray(tokens_per_step(rows.setups))
    return Predictions(
        step_s=step_s,
        low_s=step_s / spread,
        high_s=step_s * spread,
        tokens_per_s_per_gpu=tokens / (step_s * rows.setups.layout.gpus),
        memory_bytes=_as_array(memory(rows.setups).total, step_s),
        j_per_token=_as_array(energy.j_per_token, step_s) * factor,
        corrected=factor,
    )


def physics_errors(setups: Setups, seconds: Array, parameters: Parameters) -> Array:
    """Give log(measured / predicted) of the physics alone; shape (n,)."""
    return np.asarray(np.log(seconds / np.asarray(step_time(setups, parameters).total_s)))


def _correction(
    tags: tuple[Tags, ...], known_errors: Mapping[bool, KnownErrors]
) -> tuple[Array, Array]:
    log_ratio, deviation = np.zeros(len(tags)), np.zeros(len(tags))
    experts = np.array([bool(each.has_experts) for each in tags], dtype=bool)
    for kind, known in known_errors.items():
        which = np.flatnonzero(experts == kind)
        found = known.correct([tags[index] for index in which])
        log_ratio[which], deviation[which] = found.log_ratio, found.deviation
    return log_ratio, deviation


def _as_array(value: object, like: Array) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), like.shape)
