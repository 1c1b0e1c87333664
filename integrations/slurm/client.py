"""Calls Slurm's own client programs, as this user, each with a limit.

Invariant: a client that does not answer in time is ended and counts as not answered, whatever it
may have done; a refusal carries Slurm's own words. No variable of the job we run in changes what a
client does, or reaches a job that it submits.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.integrations.slurm import answers, node_answers
from wattmesh.integrations.slurm.answers import SEPARATOR, SlurmJob
from wattmesh.reconfig.launcher.nodes_ahead import NodesAhead

LIMIT_S = 20.0
"""How long one client may take. Slurm's own limit for a message is 10 s by default."""

KEY_VARIABLE = "WATTMESH_SLURM_KEY"
"""Environment variable of a job that was submitted here: the key of its launch."""

_OF_SITE = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_OF_JOB = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_"),
    *("PMI_", "PMIX_", "WATTMESH_LAUNCH", KEY_VARIABLE),
)
_OF_STEP = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"),
    *("ENVIRONMENT", "HOSTNAME"),
)


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a job's environment without what Slurm, and we, put into it."""
    return {
        name: value
        for name, value in environment.items()
        if name in _OF_SITE or not (name.startswith(_OF_JOB) or name in _OF_STEP)
    }


class SlurmClient:
    """Slurm, as one user sees and uses it."""

    def __init__(
        self, *, limit_s: float = LIMIT_S, environment: Mapping[str, str] | None = None
    ) -> None:
        """Call clients found on PATH; each may take `limit_s`."""
        self._limit_s = limit_s
        self._until_s = float("inf")
        self._environment = without_job(os.environ if environment is None else environment)
        self.uid = os.getuid()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let all calls of the block together take at most so long."""
        before, self._until_s = self._until_s, min(self._until_s, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._until_s = before

    def jobs(self) -> tuple[SlurmJob, ...]:
        """Return this user's jobs that Slurm still knows, ended ones too.

        Raises:
            SourceUnavailable, InputInvalid: as every call here.
        """
        shown = f"--format={SEPARATOR.join(answers.JOB_FIELDS)}"
        return answers.jobs(
            self._asked("squeue", f"--user={self.uid}", "--states=all", shown), self.uid
        )

    def options(self, number: int) -> list[str]:
        """Return what a successor of a job is submitted with beside what its script says."""
        shown = f"--format={SEPARATOR.join(answers.OPTION_FIELDS)}"
        told = self._asked("squeue", f"--jobs={number}", "--states=all", shown)
        if not (found := answers.options(told)):
            raise SourceUnavailable(f"squeue told nothing of job {number} that can be read")
        return found

    def gpus_in_all(self, number: int) -> str:
        """Return the GPUs that a job asked for as a whole, not per node, in Slurm's words.

        A version that cannot tell is taken to have none.
        """
        asked = ("squeue", f"--jobs={number}", "--states=all", "--Format=tres-per-job:255")
        with suppress(InputInvalid):
            return answers.gpus_in_all(self._asked(*asked))
        return ""

    def waited_s(self, number: int) -> float | None:
        """Return how long a job waited for nodes from when it might begin; None: not known."""
        asked = ("--states=all", "--Format=EligibleTime:24,StartTime:24")
        return answers.waited_s(self._asked("squeue", f"--jobs={number}", *asked))

    def nodes_ahead(
        self, options: Sequence[str], *, mine: int = 0, jobs: bool = True
    ) -> NodesAhead | None:
        """Return what is free when for a job that is submitted with some words.

        Args:
            options: as `sbatch` takes them.
            mine: the job that it follows, whose nodes are free by then; 0: none.
            jobs: whether to ask until when all users' jobs run, which is a long answer.

        Returns:
            None where it cannot be told: the job goes into a reservation, or to another cluster.
        """
        where = node_answers.partitions(options)
        elsewhere = ("-p", "-M", "--clusters", "--reservation", "--cluster")
        if not where or any(each.startswith(elsewhere) for each in options):
            return None
        partition = (f"--partition={where}",)
        shown = f"--format={SEPARATOR.join(node_answers.NODE_FIELDS)}"
        busy = f"--format={SEPARATOR.join(node_answers.BUSY_FIELDS)}"
        states = "--states=running,completing,configuring,suspended"
        nodes = self._asked("sinfo", "--Node", *partition, shown)
        reservations, _ = self._run("scontrol", "show", "reservation", "--oneliner")
        running = self._asked("squeue", "--all", states, busy) if jobs else ""
        lasts = node_answers.least_limit(options, self._least_limit(mine) if mine else None)
        now = datetime.now(UTC)
        return node_answers.nodes_ahead(now, lasts, nodes, reservations, running, mine=mine)

    def _least_limit(self, number: int) -> timedelta | None:
        """Return what a job's time limit may be shortened to (`--time-min`); None: it may not."""
        asked = ("squeue", f"--jobs={number}", "--states=all", "--Format=MinTime:32")
        return node_answers.seconds(self._asked(*asked)) or None

    def command(self, number: int) -> str:
        """Return the script that a job runs, with its arguments, as one line."""
        asked = ("squeue", f"--jobs={number}", "--states=all", "--format=%o")
        return self._asked(*asked).rstrip("\n")

    def write_script(self, number: int, path: Path) -> None:
        """Write a job's batch script to a file, in one step."""
        fresh = path.with_name(f".{path.name}.{number}")
        try:
            fresh.unlink(missing_ok=True)
            self._run("scontrol", "write", "batch_script", str(number), str(fresh))
            fresh.replace(path)
        except OSError as error:
            raise SourceUnavailable(
                f"the batch script of job {number} is not in {path} ({error})"
            ) from error

    def could_start(self, options: Sequence[str], script: Path) -> str:
        """Ask whether such a job could ever run; returns when, in Slurm's words."""
        return answers.words(self._run("sbatch", "--test-only", *options, str(script))[1])

    def submit(
        self, options: Sequence[str], script: Path, arguments: Sequence[str], key: str, mark: str
    ) -> int:
        """Submit a batch job with this process's environment, the launch's key and its mark.

        Raises:
            SourceUnavailable: it is not known whether it was submitted.
            InputInvalid: it was not.
        """
        words = (f"--comment={answers.MARK}{mark}", *options)
        return self._submitted(words, (str(script), *arguments), {KEY_VARIABLE: key})

    def submit_other(self, options: Sequence[str], script: Path) -> int:
        """Submit a batch job that is no launch of the run, with this process's environment.

        Raises:
            SourceUnavailable: it is not known whether it was submitted.
            InputInvalid: it was not.
        """
        return self._submitted(options, (str(script),), {})

    def _submitted(
        self, options: Sequence[str], command: Sequence[str], extra: Mapping[str, str]
    ) -> int:
        first = ("sbatch", "--parsable", "--export=ALL")
        told, _ = self._run(*first, *options, *command, extra=extra)
        number = answers.submitted(told)
        if number is None:
            raise SourceUnavailable(f"sbatch named no job: {answers.words(told)!r}")
        return number

    def begin_at(self, number: int, when: str) -> None:
        """Let a pending job begin at "now", or at `uts` and seconds since 1970."""
        self._run("scontrol", "update", f"jobid={number}", f"StartTime={when}")

    def cancel(self, number: int) -> None:
        """Cancel a job; one that has ended, or is not known, is no error."""
        self._run("scancel", str(number))

    def steps(self, number: int, name: str) -> list[str]:
        """Return the ids of the live steps of a job that have a name."""
        asked = ("squeue", "--steps", f"--jobs={number}", "--format=%i %j")
        return answers.steps(self._asked(*asked), name)

    def kill_step(self, step: str) -> None:
        """Kill every process of a step."""
        self._run("scancel", "--signal=KILL", step)

    def _asked(self, *words: str) -> str:
        client, *rest = words
        return self._run(client, "--noheader", *rest)[0]

    def _run(self, *words: str, extra: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Run a client; returns what it wrote to stdout and stderr.

        Raises:
            SourceUnavailable: it did not answer in time, or could not reach the controller.
            InputInvalid: it refused, or is not there.
        """
        limit_s = max(min(self._limit_s, self._until_s - time.monotonic()), 0.0)
        # What sbatch submits gets this environment too.
        own = {} if words[0] == "sbatch" else {"SLURM_TIME_FORMAT": "%s"}
        try:
            process = subprocess.Popen(
                words,
                env={**self._environment, **own, **(extra or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise InputInvalid(
                f"{words[0]} cannot be run ({error.strerror}): Slurm's clients must be on PATH "
                "where the job runs"
            ) from error
        try:
            out, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=1.0)
            raise SourceUnavailable(f"{words[0]} did not answer within {limit_s:.0f} s") from error
        told, problem = out.decode(errors="replace"), errors.decode(errors="replace")
        said = answers.words(problem) or f"exit status {process.returncode}"
        unreached = answers.is_unreached(said)
        # Some clients exit 0 without an answer; sbatch may say so, try again, and have one.
        if process.returncode == 0 and not (unreached and words[0] != "sbatch"):
            return told, problem
        if unreached or process.returncode < 0:
            raise SourceUnavailable(f"{words[0]}: {said}")
        raise InputInvalid(f"{words[0]}: {said}")
