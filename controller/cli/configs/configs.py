"""`wattmesh configs`: a job's operating points, and where their numbers come from."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from wattmesh import quantities
from wattmesh.controller.cli import drawing, options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.client import segment
from wattmesh.controller.cli.configs.configs_json import catalogue_json, shown_json
from wattmesh.controller.cli.configs.configs_screen import details, listing
from wattmesh.controller.cli.configs.configs_state import STALE, next_lines, state_json, states
from wattmesh.controller.cli.configs.configs_switches import MOST_SWITCHES, records_of
from wattmesh.controller.cli.configs.profile_json import profile_json
from wattmesh.controller.cli.drawing import drawn, put
from wattmesh.controller.cli.output import columns, print_answer, print_json, print_lines
from wattmesh.controller.profile.job import PowerKind, read_job
from wattmesh.controller.profile.measured import with_proofs
from wattmesh.controller.profile.profile import Profile, profile
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.policies.switch_time import SwitchRecord
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Evidence
from wattmesh.reconfig.ranges import clean_lines

app = typer.Typer(help="List, show, predict and measure the operating points of a job.")

SEARCH_PICTURE = "wattmesh.controller.cli.configs.search.picture"

Tell = Callable[[str], None]

PICTURE = "wattmesh.controller.cli.configs.profile_picture"

File = Annotated[Path, typer.Argument(metavar="FILE", help="Catalogue (TOML).")]


@app.command("list")
def list_points(file: File, as_json: options.AsJson = False) -> None:
    """List the points of a catalogue: when each is worth running, and what a switch costs."""
    catalogue = catalogue_file.load(file)
    found = states(catalogue, str(file), datetime.now(UTC))
    if as_json:
        told = [state_json(each) for each in found]
        print_json({**catalogue_json(catalogue), "states": told})
    else:
        stale = [each.id for each in found if each.state == STALE]
        print_lines(listing(catalogue, columns(), stale))
        print_lines(next_lines(found, columns()))


@app.command()
def show(
    file: File,
    point: Annotated[str, typer.Argument(metavar="POINT", help="Id of a point.")],
    *,
    run: Annotated[
        str,
        typer.Option(
            "--run", metavar="RUN", help="A run of this catalogue, whose own switches count first."
        ),
    ] = "",
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Show everything about one point, with the switches between it and all others."""
    catalogue = catalogue_file.load(file)
    found = catalogue.point(point)
    records: tuple[SwitchRecord, ...] = ()
    if run:
        answer = ask(socket, offline).get(f"/v1/runs/{segment(run)}", limit=MOST_SWITCHES)
        records = records_of(answer, catalogue)
    state = next(
        each for each in states(catalogue, str(file), datetime.now(UTC)) if each.id == found.id
    )
    if as_json:
        print_json({**shown_json(catalogue, found, records), "standing": state_json(state)})
    else:
        print_lines(details(catalogue, found, columns(), records))
        print_lines(next_lines((state,), columns()))


@app.command("profile")
def profile_job(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Description of the job (TOML).")],
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File to write the catalogue to.")
    ] = Path("catalogue.toml"),
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder that keeps logs and what was measured; a profile that was ended goes on "
            "there.",
        ),
    ] = None,
    fake_gpus: Annotated[
        bool, typer.Option("--fake-gpus", help="Simulate GPUs, whatever the job file says.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--png", metavar="FILE", help="Draw J/token against speed into FILE."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a job at each of its points, measure speed and power, and write the catalogue."""
    described = read_job(job)
    if fake_gpus:
        described = replace(described, power=replace(described.power, kind=PowerKind.FAKE))
    tell: Tell = _silent if as_json else _say
    place = folder or out.with_suffix(".profile")
    before = _older(out)
    try:
        found = profile(described, place, tell)
    except KeyboardInterrupt:
        tell(f"stopped; what was measured is kept in {place}, and the same command goes on there")
        raise
    if before is not None:
        found = _with_proofs(found, before, tell)
    try:
        catalogue = catalogue_file.save(found.catalogue, out)
    except OSError as error:
        raise InputInvalid(
            f"cannot write {out}: {error.strerror}; make room or name another file with --out: all "
            f"that was measured is kept in {place}"
        ) from error
    told = profile_json(found, catalogue, out)
    if picture is not None:
        put(picture, drawn(PICTURE, told))
    if as_json:
        print_json(told)
        return
    print_lines(listing(catalogue, columns()))
    print_lines(
        f"{point} may not be switched to automatically: {why}"
        for point, why in found.unproven.items()
    )
    print_lines([f"wrote {out} after {quantities.duration(found.wall_s)}; its logs are in {place}"])
    if found.unproven:
        print_lines([f"prove them: wattmesh configs validate {job} --catalogue {out}"])


def _older(out: Path) -> Catalogue | None:
    """Read the catalogue that is to be written anew; None where there is none.

    Raises:
        InputInvalid: the file is there, and is no catalogue, or none can be written there.
    """
    if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise InputInvalid(
            f"nothing can be written in {out.absolute().parent}; name another file with --out"
        )
    if not out.exists():
        return None
    try:
        return catalogue_file.load(out)
    except WattmeshError as error:
        raise InputInvalid(
            f"{out} is there and is no catalogue that can be read; name another file with --out"
        ) from error


def _with_proofs(found: Profile, before: Catalogue, tell: Tell) -> Profile:
    """Keep the proofs that still hold, and say which do not."""
    catalogue = with_proofs(found.catalogue, before)
    proven = {each.id for each in catalogue.points if each.evidence is Evidence.VALIDATED}
    lost = [
        each.id
        for each in before.points
        if each.evidence is Evidence.VALIDATED and each.id not in proven
    ]
    if lost:
        tell(
            f"{', '.join(lost)} must be validated again: the layout, the clock, the reference or "
            "what it was proven on is not the same as in the catalogue before"
        )
    unproven = {name: why for name, why in found.unproven.items() if name not in proven}
    return replace(found, catalogue=catalogue, unproven=unproven)


@app.command("validate")
def validate_job(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Description of the job (TOML).")],
    *,
    file: Annotated[
        Path,
        typer.Option("--catalogue", metavar="FILE", help="Catalogue that `profile` has written."),
    ] = Path("catalogue.toml"),
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder that keeps logs and what was proven; a validation that was ended goes on "
            "there.",
        ),
    ] = None,
    points: Annotated[
        list[str] | None,
        typer.Option("--point", metavar="POINT", help="Prove only this one; may be repeated."),
    ] = None,
    largest_state_gib: Annotated[
        float,
        typer.Option(
            "--largest-state-gib",
            min=0.001,
            metavar="GIB",
            help="Largest state that rank 0 may gather, twice, in host memory.",
        ),
    ] = 8.0,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            min=0,
            max=64,
            metavar="N",
            help="Compare points that draw random numbers over N seeds, 5 or more, with two "
            "launches for each seed; 0: leave them unproven.",
        ),
    ] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Prove with the job itself which of its measured points train alike, so that they count."""
    # It loads numpy, which the other commands do without.
    from wattmesh.controller.cli.configs import validate_screen  # noqa: PLC0415
    from wattmesh.controller.validate.validate import Validator  # noqa: PLC0415

    found = Validator(
        job=read_job(job),
        file=file,
        folder=folder or file.with_suffix(".validation"),
        tell=_silent if as_json else _say,
        largest_bytes=int(largest_state_gib * 2**30),
        seeds=seeds,
    ).run(points or ())
    if as_json:
        print_json(validate_screen.validation_json(found, str(file)))
        return
    print_lines(validate_screen.proof_lines(found, columns()))
    took = quantities.duration(found.wall_s)
    print_lines([f"wrote {file} after {took}; its logs are in {found.folder}"])


@app.command("search")
def search_layouts(
    *,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="NxGPU", help="GPUs: 256xh100, or 128xh100,64xa100.")
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A model that is known by name.")
    ] = "",
    hf_config: Annotated[
        Path | None,
        typer.Option("--hf-config", metavar="FILE", help="config.json of a Hugging Face model."),
    ] = None,
    global_batch: Annotated[
        int, typer.Option("--batch", min=1, max=2**24, metavar="N", help="Samples of a step.")
    ] = 1024,
    seq_len: Annotated[
        int, typer.Option("--seq-len", min=1, max=2**24, metavar="N", help="Tokens of a sample.")
    ] = 8192,
    everything: Annotated[
        bool, typer.Option("--all", help="Show also what is not on the hull of speed and power.")
    ] = False,
    why: Annotated[
        str, typer.Option("--why", metavar="LAYOUT", help="Say what keeps a layout out: tp16 pp3.")
    ] = "",
    grid: Annotated[
        Path | None,
        typer.Option(
            "--grid", metavar="FILE", help="Trace of a grid: rank what to measure next for it."
        ),
    ] = None,
    deadline_h: Annotated[
        float | None,
        typer.Option(
            "--deadline", min=1, max=8784, metavar="HOURS", help="Hours that the job may take."
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens", min=1, max=1e18, metavar="N", help="Tokens to train until the deadline."
        ),
    ] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            "--catalogue", metavar="FILE", help="Catalogue of the job: what is measured already."
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw the points as a PNG as well."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Search all layouts and clocks of a model for those that nothing beats: worth measuring."""
    # It loads SciPy, which takes longer than the other commands run.
    from wattmesh.controller.cli.configs.search import predicting  # noqa: PLC0415

    if bool(model) == (hf_config is not None):
        raise InputInvalid("give the model by --model NAME, or by --hf-config FILE")
    job = predicting.asked_job(model, hf_config, gpus, global_batch, seq_len)
    asked = predicting.asked_ranking(grid, deadline_h, tokens, catalogue)
    if isinstance(job, predicting.MixedJob):
        if why or asked:
            raise InputInvalid("--why and --grid are for one class of GPUs; leave them out")
        answer, lines = predicting.searched_mixed(job), predicting.mixed_lines
    elif why:
        print_lines(predicting.why(job, why))
        return
    else:
        answer, lines = predicting.searched(job, asked), predicting.search_lines
    if picture is not None:
        drawing.put(picture, drawing.drawn(SEARCH_PICTURE, answer))
    if as_json:
        print_json(answer)
        return
    print_lines(lines(answer, columns(), everything=everything))
    print_lines(predicting.ranking_lines(answer, columns()))
    if picture is not None:
        print_lines([f"wrote {picture}"])


@app.command("predict")
def predict_rows(
    table: Annotated[
        Path, typer.Option("--csv", metavar="IN", help="Table of configurations (CSV).")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="OUT", help="File for the same table with predictions.")
    ],
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="FILE", help="Such a table with steps timed on your cluster."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict time, memory and energy of the configurations in a table."""
    from wattmesh.controller.cli.configs.search import predicting  # noqa: PLC0415 - as above

    answer = predicting.predicted(table, out, measured)
    print_answer(answer, lambda: predicting.predicted_lines(answer), as_json)


@app.command("measured")
def measured_points(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of a live run.")],
    *,
    catalogue: Annotated[
        Path,
        typer.Option("--catalogue", metavar="FILE", help="Catalogue that the run began with."),
    ],
    gpu: Annotated[str, typer.Option("--gpu", metavar="GPU", help="Its GPUs: h100.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="OUT", help="File for the rows (CSV).")
    ] = Path("measured.csv"),
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A model that is known by name.")
    ] = "",
    hf_config: Annotated[
        Path | None,
        typer.Option("--hf-config", metavar="FILE", help="config.json of a Hugging Face model."),
    ] = None,
    zero: Annotated[
        int, typer.Option("--zero", min=0, max=3, help="What ranks deal among them; FSDP: 3.")
    ] = 1,
    micro_batch: Annotated[
        int,
        typer.Option(
            "--micro-batch", min=0, max=2**24, metavar="N", help="Where layouts do not say it."
        ),
    ] = 0,
    precision: Annotated[
        str, typer.Option("--precision", metavar="FORMAT", help="Number format.")
    ] = "bf16",
    framework: Annotated[
        str, typer.Option("--framework", metavar="NAME", help="Its software, if it is published.")
    ] = "",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Write what a live run measured as rows that `configs predict --measured` reads."""
    from wattmesh.controller.cli.configs.search import predicting  # noqa: PLC0415 - as above

    if model and hf_config is not None:
        raise InputInvalid("give the model by --model NAME, or by --hf-config FILE, not by both")
    said = ask(socket, None).get(f"/v1/runs/{segment(run)}/why", limit=1)
    told = predicting.ToldByUser(
        shape=None,
        model=model,
        gpu=gpu,
        zero=zero,
        micro_batch=micro_batch,
        precision=precision,
        framework=framework,
    )
    answer = predicting.measured_live(said["run"], catalogue, out, hf_config=hf_config, told=told)
    print_answer(answer, lambda: predicting.measured_live_lines(answer), as_json)


def _say(text: str) -> None:
    """Print progress at once."""
    print(clean_lines(text), flush=True)


def _silent(text: str) -> None:
    """Keep standard output for the JSON value."""
