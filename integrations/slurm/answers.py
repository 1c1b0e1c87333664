"""Reads what Slurm's clients print. Pure.

Text in a format that we name, not `--json`: the format letters mean the same in every version, the
filters of the command line hold (version 22.05 prints all users' jobs as JSON whatever they say),
and a job takes 100 bytes instead of 4,000. Times are asked for in seconds since 1970.

Invariant: what a user may write freely (a comment, a name) stands last in its line, and can neither
end an answer nor change another job's. A line that is none of ours is passed over.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

MARK = "wattmesh:"
"""How the comment begins of a job that was submitted here; the launch's mark follows."""

SEPARATOR = "\x1f"
"""Between the fields: no partition, account or reservation has it in its name."""

JOB_FIELDS = ("%A", "%U", "%T", "%V", "%S", "%D", "%r", "%b", "%m", "%f", "%k")
"""Id, uid, state, submitted, begins, nodes, reason, GPUs per node, memory, features, comment."""

OPTION_FIELDS = {
    "%P": "--partition",
    "%a": "--account",
    "%q": "--qos",
    "%v": "--reservation",
    "%l": "--time",
    "%Z": "--chdir",
    "%j": "--job-name",
}
"""What a successor takes from the job it follows: it may have come by command line alone."""

_NOTHING = ("", "(null)", "N/A", "None", "n/a")

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States of a job that takes no nodes any more. A state that is not known here counts as live."""

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""States of a job that has no nodes yet, or again."""

HELD_BY_PEOPLE = frozenset({"JobHeldUser", "JobHeldAdmin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, as `squeue` tells it.

    Attributes:
        number: its id. `state`: in Slurm's words.
        begins_at: when it began, or may begin at the earliest or is expected to; None: not known.
        reason: why it waits, in Slurm's word.
        gpus, memory, features: what it asked for on each node, in Slurm's words; "": nothing.
        mark: of the launch that it was submitted for; "": it was not.
    """

    number: int
    uid: int
    state: str
    submitted_at: datetime | None
    begins_at: datetime | None
    nodes: int
    reason: str
    gpus: str
    memory: str
    features: str
    mark: str

    @property
    def is_live(self) -> bool:
        """Whether it has or may still get nodes."""
        return self.state not in ENDED

    @property
    def is_running(self) -> bool:
        """Whether it has nodes."""
        return self.is_live and self.state not in WAITING


def jobs(answer: str, uid: int) -> tuple[SlurmJob, ...]:
    """Read an answer in `JOB_FIELDS`; jobs of other users are passed over."""
    read = (_job(line) for line in answer.split("\n"))
    return tuple(each for each in read if each is not None and each.uid == uid)


def _job(line: str) -> SlurmJob | None:
    fields = line.split(SEPARATOR, len(JOB_FIELDS) - 1)
    if len(fields) != len(JOB_FIELDS):
        return None
    number, uid, state, submitted, begins, nodes, reason, *asked, comment = fields
    known = whole_number(number), whole_number(uid), whole_number(nodes)
    if known[0] is None or known[1] is None or known[2] is None:
        return None
    gpus, memory, features = ("" if each.strip() in _NOTHING else each.strip() for each in asked)
    return SlurmJob(
        number=known[0],
        uid=known[1],
        state=state.strip().upper(),
        submitted_at=_moment(submitted),
        begins_at=_moment(begins),
        nodes=known[2],
        reason=reason.strip(),
        gpus=gpus,
        memory=memory,
        features=features,
        mark=mark_of(comment),
    )


def mark_of(comment: str) -> str:
    """Return the launch's mark in a job's comment; "" if there is none.

    Sites may write more into a comment, before it or after it.
    """
    words = (word for word in comment.split() if word.startswith(MARK))
    mark = next(words, "").removeprefix(MARK)
    plain = mark.isascii() and all(each.isalnum() or each in "-_." for each in mark)
    return mark if plain and len(mark) <= 129 else ""


def options(answer: str) -> list[str]:
    """Read an answer in `OPTION_FIELDS`, of one job, into words for `sbatch`."""
    fields = answer.rstrip("\n").split(SEPARATOR, len(OPTION_FIELDS) - 1)
    if len(fields) != len(OPTION_FIELDS):
        return []
    named = zip(OPTION_FIELDS.values(), fields, strict=True)
    limits = ("UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit")
    return [
        f"{option}={value}"
        for option, value in named
        if value.strip() not in _NOTHING and value.strip() not in limits and "\n" not in value
    ]


def waited_s(answer: str) -> float | None:
    """Read `squeue` in EligibleTime and StartTime of one job: the seconds between."""
    eligible, _, started = answer.strip().partition(" ")
    known = whole_number(eligible), whole_number(started)
    return float(max(known[1] - known[0], 0)) if known[0] and known[1] else None


def gpus_in_all(answer: str) -> str:
    """Read `squeue` in tres-per-job of one job: its GPUs, as "gres:gpu:4"; "" if it names none."""
    said = answer.strip()
    return said if "gpu" in said.lower() else ""


def submitted(answer: str) -> int | None:
    """Read `sbatch --parsable`: the job's id, perhaps with its cluster, perhaps after warnings."""
    for line in reversed(answer.splitlines()):
        number = whole_number(line.partition(";")[0])
        if number:
            return number
    return None


def steps(answer: str, name: str) -> list[str]:
    """Read `squeue --steps` as "id name" lines: the ids of the steps that have this name."""
    read = (line.strip().partition(" ") for line in answer.splitlines())
    return [
        step for step, _, called in read if called == name and whole_number(step.partition(".")[0])
    ]


def words(answer: str) -> str:
    """Return what a client said of an error, as one short line without control characters."""
    lines = (line.strip() for line in answer.splitlines())
    said = " ".join(line for line in lines if line)
    return "".join(each if each.isprintable() else "?" for each in said)[:500]


UNREACHED = (
    *("unable to contact slurm controller", "socket timed out", "connection refused"),
    *("zero bytes were transmitted", "communication connection failure", "connection timed out"),
    *("slurm backup controller in standby", "temporarily unable to accept job"),
    *("unable to establish control machine", "send/recv", "unexpected message received"),
)
"""Parts of what clients print when the controller did not answer: it may still have acted."""


def is_unreached(said: str) -> bool:
    """Return whether an error means that the controller did not answer."""
    lower = said.lower()
    return any(part in lower for part in UNREACHED)


def any_of(found: Iterable[SlurmJob], mark: str, numbers: Iterable[int]) -> list[SlurmJob]:
    """Return the jobs that were submitted for a launch: those with its mark, and those noted.

    A noted job that has another launch's mark is not: Slurm counts jobs anew where it lost its
    state.
    """
    noted = set(numbers)
    return [
        each for each in found if each.mark == mark or (each.mark == "" and each.number in noted)
    ]


def whole_number(text: str) -> int | None:
    """Read a whole number of at most 11 digits; None: the text is no such number."""
    plain = text.strip()
    return int(plain) if plain.isascii() and plain.isdecimal() and len(plain) < 12 else None


def _moment(text: str) -> datetime | None:
    seconds = whole_number(text)
    return datetime.fromtimestamp(seconds, UTC) if seconds and seconds < 1 << 34 else None
