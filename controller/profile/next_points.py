"""Asks for the point that a profile should measure next, and says why it is the next.

The ranking runs in a child process, for it loads SciPy; the job trains on meanwhile. Invariant:
whatever the child does, what was measured stays, and the profile ends as it would without a search.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

from wattmesh import quantities
from wattmesh.controller.process.life import end_with
from wattmesh.controller.profile.job import MOST_OFF, Candidate, PowerKind, ProfileJob
from wattmesh.controller.profile.results import MeasuredPoint, ProfileState, ProposedPoint
from wattmesh.controller.profile.search_table import SearchTable
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.catalogue import PowerScope
from wattmesh.reconfig.layout import Layout

CHILD = "wattmesh.controller.cost_model.next_point"
LIMIT_S = 120.0

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The job computes beside it."""

AS_KEYS = {"--hf-config": "search.hf_config", "--model": "search.model", "--grid": "search.grid"}
"""Options of the command that searches, and the keys of the job file that mean the same."""

Tell = Callable[[str], None]


class NextPoints(Protocol):
    """What says which point a profile measures next."""

    def propose(self, job: ProfileJob, known: ProfileState, *, clocks: bool) -> ProfileState:
        """Add the next point to `known.proposed`; without one, return it as it is.

        Args:
            job: with all of its points so far.
            known: what was measured.
            clocks: whether they can be set.
        """
        ...


class NothingMore:
    """Where the job file names all points."""

    def propose(self, job: ProfileJob, known: ProfileState, *, clocks: bool) -> ProfileState:
        """Propose nothing."""
        return known


class PointSearch:
    """Proposes points by the cost model, as the `[search]` table says."""

    def __init__(self, search: SearchTable, tell: Tell) -> None:
        """Keep what is searched; `tell` gets one line for each proposal, and for the end."""
        self._search, self._tell = search, tell
        self._over = False

    def check(self, job: ProfileJob) -> None:
        """Find out whether there is anything to search, before the job is started.

        Raises:
            InputInvalid: the table, its files or the job's sizes do not go together, no layout is
                left, or the cost model knows nothing of such a job.
        """
        said = _asked(_question(job, self._search, None, clocks=True))
        if "error" in said:
            raise InputInvalid(f"[search] cannot be used: {said['error']}")
        self._tell(
            f"search: {said['points']} points to choose from; after the declared ones at most "
            f"{self._search.most} more are measured, each told with its reason"
        )

    def propose(self, job: ProfileJob, known: ProfileState, *, clocks: bool) -> ProfileState:
        """Add the point that would save most, or tell why none is left."""
        if self._over:
            return known
        why = _contradiction(job, known)
        if len(known.proposed) >= self._search.most:
            why = f"{self._search.most} points were proposed, the limit (search.most)"
        said: dict[str, Any] = {"why": why}
        if not why:
            said = _asked(_question(job, self._search, known, clocks=clocks))
        if "next" not in said:
            self._over = True
            self._tell(f"search: it ends; {said.get('error') or said['why']}.")
            return known
        proposed = _proposed(job, said["next"], len(known.proposed) + 1, self._search.most)
        self._tell(proposed.sentence)
        return replace(known, proposed=(*known.proposed, proposed))


def with_proposed(job: ProfileJob, known: ProfileState) -> ProfileJob:
    """Give the job with the points that were proposed."""
    mine = {each.id for each in job.points}
    more = tuple(_candidate(each) for each in known.proposed if each.id not in mine)
    return replace(job, points=(*job.points, *more)) if more else job


def as_toml(proposed: Sequence[ProposedPoint]) -> str:
    """Write points as a job file has them."""
    lines = []
    for each in proposed:
        usual = Layout().to_dict()
        parts = [
            f"{name} = {json.dumps(value)}"
            for name, value in each.layout.to_dict().items()
            if value != usual.get(name)
        ]
        lines += [f"# {each.sentence}", "[[point]]", f'id = "{each.id}"']
        lines.append(f"layout = {{ {', '.join(parts) or 'dp_shard = 1'} }}")
        if each.clock_mhz is not None:
            lines.append(f"clock_mhz = {each.clock_mhz}")
        lines.append("")
    return "\n".join(lines)


def compared(point: MeasuredPoint, known: ProfileState) -> str:
    """Say how a measured point lies beside what was proposed; "" where it was declared."""
    proposed = next((each for each in known.proposed if each.id == point.id), None)
    if proposed is None:
        return ""
    speed = point.tokens_per_s / proposed.tokens_per_s
    joules = point.j_per_token / proposed.j_per_token
    return (
        f"{point.id}: {speed:.2f} times the predicted speed, at {joules:.2f} times the predicted "
        "joules per token"
    )


def _candidate(proposed: ProposedPoint) -> Candidate:
    return Candidate(id=proposed.id, layout=proposed.layout, clock_mhz=proposed.clock_mhz)


def _contradiction(job: ProfileJob, known: ProfileState) -> str:
    """Say that the job trains another batch than its file states; "" where it does not."""
    stated = job.global_batch * job.seq_len
    for each in known.points:
        reported = each.tokens_per_s * (each.step_s + each.boundary_s / job.boundary_every)
        if not 1 / MOST_OFF <= reported / stated <= MOST_OFF:
            return (
                f"a step of {each.id} trains {reported:,.0f} tokens, and job.global_batch * "
                f"job.seq_len is {stated:,}; correct one of them"
            )
    return ""


def _question(
    job: ProfileJob, search: SearchTable, known: ProfileState | None, *, clocks: bool
) -> dict[str, Any]:
    """Put a question as `next_point.answer` takes it."""
    refused = known.refused if known is not None else {}
    unfit = known.unfit if known is not None else ()
    points = known.points if known is not None else ()
    by_id = {each.id: each for each in job.points}
    return {
        "search": {
            **asdict(search),
            "grid": str(search.grid),
            "hf_config": str(search.hf_config) if search.hf_config else "",
        },
        "processes": job.processes,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "tokens": search.tokens or job.tokens_total,
        "processors": job.power.kind is PowerKind.RAPL,
        "has_node": known is not None and known.scope == PowerScope.NODE,
        "layouts": sorted({each.layout.degrees for each in job.points if each.clock_mhz is None}),
        "measured": [
            {
                "id": each.id,
                **_place(by_id[each.id]),
                "tokens_per_s": each.tokens_per_s,
                "power_w": each.power_w,
            }
            for each in points
            if each.id in by_id
        ],
        "known": [_place(each) for each in job.points],
        "refused": [each.layout.to_dict() for each in job.points if each.id in refused],
        "unfit": [each.layout.to_dict() for each in job.points if each.id in unfit],
        "clocks": clocks,
    }


def _place(point: Candidate) -> dict[str, Any]:
    return {"layout": point.layout.to_dict(), "clock_mhz": point.clock_mhz}


def _asked(question: dict[str, Any]) -> dict[str, Any]:
    """Ask the child process; its answer, with `error` where there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", CHILD],
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
            preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            return {"error": f"the ranking failed ({lines[-1] if lines else 'no reason given'})"}
        said: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"error": f"the ranking failed ({error})"}
    if "error" in said:
        for option, key in AS_KEYS.items():
            said["error"] = said["error"].replace(option, key)
    return said


def _proposed(job: ProfileJob, said: dict[str, Any], number: int, most: int) -> ProposedPoint:
    """Name a proposal, and say why it is the next."""
    taken = {each.id for each in job.points}
    name = next(each for at in range(number, 10_000) if (each := f"S{at}") not in taken)
    layout, clock_mhz = Layout.from_dict(said["layout"]), said["clock_mhz"]
    parts = [str(layout)]
    parts += [f"{clock_mhz} MHz"] if clock_mhz is not None else []
    predicted = (
        f"search {number}/{most}: {name} ({', '.join(parts)}) is next: predicted "
        f"{quantities.count(said['tokens_per_s'])} tokens/s and "
        f"{quantities.figures(said['j_per_token'])} J/token"
    )
    if said["expected_g"] is None:
        why = "the fastest there is, and no measured point makes the deadline"
    else:
        why = (
            f"would save {quantities.grams(said['if_true_g'])} of "
            f"{quantities.grams(said['now_g'])} if that is true, "
            f"{quantities.grams(said['expected_g'])} on the average"
        )
    corrected = (
        f"measured points take {quantities.figures(said['slower'])} times the predicted time and "
        f"{quantities.figures(said['thirstier'])} times the watts"
    )
    return ProposedPoint(
        id=name,
        layout=layout,
        clock_mhz=clock_mhz,
        tokens_per_s=said["tokens_per_s"],
        j_per_token=said["j_per_token"],
        expected_g=said["expected_g"],
        if_true_g=said["if_true_g"],
        sentence=f"{predicted}; {why} ({corrected})",
    )
