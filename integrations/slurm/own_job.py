"""Which job this process runs in, and how ranks are divided among nodes.

Invariant: what cannot have a successor of its own (a job array, a heterogeneous job) is refused
before anything starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid

SCRIPT_NAME = "slurm_script"
"""What a node's daemon calls the copy of a batch script that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """The batch job of this process.

    Attributes:
        requeues: how often it was started again under its id.
        nodes: how many it has.
    """

    cluster: str
    number: int
    requeues: int
    nodes: int

    @property
    def name(self) -> str:
        """Its name in the launch book."""
        return name_of(self.cluster, self.number)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "OwnJob":
        """Read it from the environment of a batch script.

        Raises:
            InputInvalid: not in a job, or in one that can have no successor.
        """
        number = _whole(environment.get("SLURM_JOB_ID", ""))
        if not number:
            raise InputInvalid(
                "SLURM_JOB_ID is not set: start this in a batch script, with `sbatch`."
            )
        several = [
            name for name in ("SLURM_ARRAY_JOB_ID", "SLURM_HET_SIZE") if environment.get(name)
        ]
        if several:
            raise InputInvalid(
                f"{several[0]} is set: a job array or a heterogeneous job has no single successor; "
                "submit each run as a job of its own."
            )
        return cls(
            cluster=environment.get("SLURM_CLUSTER_NAME") or "slurm",
            number=number,
            requeues=_whole(environment.get("SLURM_RESTART_COUNT", "")),
            nodes=max(_whole(environment.get("SLURM_JOB_NUM_NODES", "")), 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """How many nodes a launch has, and how many ranks each."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int:
        """How many ranks that are."""
        return self.nodes * self.per_node

    @property
    def options(self) -> list[str]:
        """How `sbatch` is asked for it."""
        return [
            f"--nodes={self.nodes}",
            f"--ntasks={self.ranks}",
            f"--ntasks-per-node={self.per_node}",
        ]


def shape_of(ranks: int, most_per_node: int) -> LaunchShape:
    """Divide ranks among as few nodes as hold them, equally.

    Raises:
        InputInvalid: they cannot be divided so.
    """
    nodes = -(-ranks // most_per_node)
    if ranks < 1 or ranks % nodes:
        raise InputInvalid(
            f"{ranks} ranks do not divide among {nodes} nodes with at most {most_per_node} each: "
            f"a size must be at most {most_per_node}, or a multiple of what each node then has."
        )
    return LaunchShape(nodes=nodes, per_node=ranks // nodes)


def own_shape(environment: Mapping[str, str], per_node: int | None) -> LaunchShape:
    """Return the shape of this job: from its tasks per node, else its GPUs, else what is asked.

    Raises:
        InputInvalid: nothing says how many ranks a node has.
    """
    nodes = max(_whole(environment.get("SLURM_JOB_NUM_NODES", "")), 1)
    tasks = _whole(environment.get("SLURM_NTASKS_PER_NODE", "").partition("(")[0])
    found = per_node or tasks or _whole(environment.get("SLURM_GPUS_ON_NODE", ""))
    if not found:
        raise InputInvalid(
            "how many ranks a node has is not known: give the job --ntasks-per-node, or this "
            "command --ranks-per-node."
        )
    return LaunchShape(nodes=nodes, per_node=found)


def name_of(cluster: str, number: int) -> str:
    """Name a job in the launch book."""
    return f"{cluster}/{number}"


def number_of(name: str, cluster: str) -> int:
    """Return the id of a job that the launch book names; 0 if it is another cluster's."""
    of, _, number = name.rpartition("/")
    return _whole(number) if of == cluster else 0


def script_arguments(proc: Path = Path("/proc"), pid: str = "self") -> list[str] | None:
    """Return the arguments of the batch script that this process runs in; None: it is not there.

    It is not where the script replaced itself by this process (`exec`).
    """
    while pid != "0":
        try:
            words = (proc / pid / "cmdline").read_bytes().split(b"\0")[:-1]
            stat = (proc / pid / "stat").read_text(errors="replace")
        except OSError:
            return None
        for place, word in enumerate(words[:3]):
            if word.rpartition(b"/")[2] == SCRIPT_NAME.encode():
                return [each.decode(errors="surrogateescape") for each in words[place + 1 :]]
        pid = stat.rpartition(")")[2].split()[1]
    return None


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0
