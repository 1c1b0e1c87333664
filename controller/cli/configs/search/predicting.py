"""What `configs search`, `predict` and `measured` do: loaded by them only, for it loads SciPy."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from wattmesh.controller.cli.configs.search.mixed_screen import mixed_json, mixed_lines
from wattmesh.controller.cli.configs.search.ranking_screen import ranking_json, ranking_lines
from wattmesh.controller.cli.configs.search.screen import search_json, search_lines, why_lines
from wattmesh.controller.cost_model import csv_files, fitted
from wattmesh.controller.cost_model.asked_search import clusters, from_hugging_face, known_model
from wattmesh.controller.cost_model.live_rows import ToldByUser, live_rows, write_rows
from wattmesh.controller.cost_model.measured_gain import MeasuredGain, gain, gain_lines, left_out
from wattmesh.controller.cost_model.profile_ranking import AskedRanking, asked_ranking, ranking_of
from wattmesh.errors import InputInvalid
from wattmesh.policies.layout_search.gpu_parts import GpuPart, MixedJob
from wattmesh.policies.layout_search.mixed import search_mixed
from wattmesh.policies.layout_search.search import megatron_like, search
from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.hardware import gpu_class
from wattmesh.policies.parallelism.measured import with_measurements
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.layout import Layout

__all__ = [
    "MixedJob",
    "ToldByUser",
    "asked_job",
    "asked_ranking",
    "measured_live",
    "measured_live_lines",
    "mixed_lines",
    "predicted",
    "predicted_lines",
    "ranking_lines",
    "search_lines",
    "searched",
    "searched_mixed",
    "why",
]

MOST_REASONS = 10
"""Reasons for which rows were left out that the screen tells."""


def asked_job(
    model: str, hf_config: Path | None, gpus: str, global_batch: int, seq_len: int
) -> Job | MixedJob:
    """Read what a search is asked for: a model by name, or by its config.json.

    Raises:
        InputInvalid: the model or the GPUs are not understood.
    """
    shape = from_hugging_face(hf_config) if hf_config else known_model(model)
    parts = [GpuPart(gpus=count, gpu=gpu) for count, gpu in clusters(gpus)]
    if len(parts) == 1:
        (part,) = parts
        return Job(
            shape=shape, global_batch=global_batch, seq_len=seq_len, gpus=part.gpus, gpu=part.gpu
        )
    return MixedJob(
        shape=shape, global_batch=global_batch, seq_len=seq_len, parts=(parts[0], parts[1])
    )


def searched_mixed(job: MixedJob) -> dict[str, Any]:
    """Search all layouts of a job on two classes of GPUs."""
    return mixed_json(job, search_mixed(job, fitted.shipped()))


def searched(job: Job, asked: AskedRanking | None = None) -> dict[str, Any]:
    """Search all layouts and clocks of a job; rank them where a grid is asked for.

    Raises:
        InputInvalid: the catalogue that was given is of another job.
    """
    work, model = megatron_like(job), fitted.shipped()
    found = search(job, work, model)
    answer = search_json(job, found)
    if asked is not None:
        answer |= ranking_json(answer, asked, ranking_of(job, work, found, model, asked))
    return answer


def why(job: Job, layout: str) -> list[Text | str]:
    """Say what keeps a layout, as people write it, out.

    Raises:
        InputInvalid: it is no layout.
    """
    return why_lines(job, Layout.from_text(layout))


def predicted(table: Path, out: Path, measured: Path | None) -> dict[str, Any]:
    """Predict the rows of a table, write them, and say how many there were.

    Raises:
        InputInvalid: a table cannot be read or written, or would be written over itself.
    """
    csv_files.check_out(out, table, measured)
    names, rows = csv_files.read_table(table)
    model = fitted.shipped()
    found, steps, gained = csv_files.predict_table(names, rows, model), 0, None
    if measured is not None:
        mine = csv_files.measured_table(measured, model)
        steps, plain = len(mine.seconds), found.predictions
        found = csv_files.predict_table(names, rows, with_measurements(model, mine))
        if len(found.kept):
            before, after = left_out(model, mine) or (None, None)
            gained = replace(gain(plain, found.predictions), before=before, after=after)
    csv_files.write_table(found, out)
    return {
        "rows": len(rows),
        "predicted": len(found.kept),
        "measured": steps,
        "gain": None if gained is None else asdict(gained),
        "excluded": dict(Counter(found.excluded.values()).most_common()),
        "file": str(out),
    }


def predicted_lines(answer: dict[str, Any]) -> Iterator[str]:
    """Say the same on a screen."""
    steps = answer["measured"]
    yield f"predicted {answer['predicted']} of {answer['rows']} rows; wrote {answer['file']}"
    if steps:
        yield f"corrected by {steps} measured step{'s' if steps > 1 else ''}"
    if answer["gain"] is not None:
        yield from gain_lines(MeasuredGain(**answer["gain"]))
    for reason, count in list(answer["excluded"].items())[:MOST_REASONS]:
        yield f"left out {count}: {reason}"


def measured_live(
    run: Mapping[str, Any],
    catalogue: Path,
    out: Path,
    *,
    hf_config: Path | None,
    told: ToldByUser,
) -> dict[str, Any]:
    """Write what a live run measured as rows for `configs predict --measured`.

    `told`: by the user; its shape is read here, of `told.model` or of `hf_config`.

    Raises:
        InputInvalid: a file cannot be read or written, or nothing fits together.
    """
    csv_files.check_out(out, catalogue, hf_config)
    try:
        gpu = gpu_class(told.gpu)
    except KeyError as error:
        raise InputInvalid(f"--gpu: {error.args[0]}") from None
    shape = None
    if hf_config is not None:
        shape = from_hugging_face(hf_config)
    elif told.model:
        shape = known_model(told.model)
    found = live_rows(run, catalogue_file.load(catalogue), replace(told, shape=shape, gpu=gpu.name))
    write_rows(found, out)
    return {
        "run": run["name"],
        "rows": len(found.rows),
        "left_out": dict(found.left_out),
        "empty": list(found.empty),
        "file": str(out),
    }


def measured_live_lines(answer: dict[str, Any]) -> Iterator[str]:
    """Say the same on a screen."""
    rows = answer["rows"]
    points = f"{rows} measured point{'s' if rows != 1 else ''}"
    yield f"wrote {answer['file']}: {points} of {answer['run']}"
    for point, why in answer["left_out"].items():
        yield f"left out {point}: {why}"
    yield from answer["empty"]
    if rows and not answer["empty"]:
        yield f"next: `wattmesh configs predict --csv IN --out OUT --measured {answer['file']}`"
