"""GPUs as a cost model sees them: rates, memory, links, watts. Pure.

Rates are vendors' dense figures per GPU, per direction where they are links; what is reached of
them is fitted (`parameters`). Idle watts are priors until the cluster's own are measured.
"""

import re
from dataclasses import dataclass

GENERATIONS = ("ampere", "ada", "hopper", "blackwell")
"""GPUs of one generation share what is fitted of their attention kernels and grouped products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClass:
    """One kind of GPU.

    Attributes:
        matmul_flops: of a dense bf16 product, 1/s. `memory_bytes`, `memory_bytes_per_s`: its own.
        link_bytes_per_s: to GPUs of its domain, one way. `domain`: how many GPUs such links join.
        network_bytes_per_s: to the others, of its own share of its node's adapters.
        power_w: the most that it may draw. `idle_w`: a prior.
        family: GPUs that share what is fitted of their matrix products.
    """

    name: str
    family: str
    generation: str
    matmul_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    domain: int
    network_bytes_per_s: float
    power_w: float
    idle_w: float


_TABLE = """
name        family    generation  TFLOP/s GB  TB/s GB/s domain GB/s W   idle
a100        a100      ampere      312     80  2.0  300  8      25   400  55
a100-40gb   a100      ampere      312     40  1.55 300  8      25   400  50
a100-100g   a100-100g ampere      312     80  2.0  300  8      12.5 400  55
l40s        l40s      ada         362     48  0.86 32   1      25   350  33
h100        h100      hopper      989     80  3.35 450  8      50   700  72
h100-500w   h100-500w hopper      989     96  2.4  450  8      50   500  70
h200        h100      hopper      989     141 4.8  450  8      50   700  78
b200        gb200      blackwell   2250    180 8.0  900  8      50   1000 140
b300        gb300      blackwell   2250    279 8.0  900  8      100  1100 140
gb200       gb200     blackwell   2500    186 8.0  900  72     50   1200 140
gb300       gb300     blackwell   2500    279 8.0  900  72     100  1400 150
"""
"""bf16 rate; memory and its rate; links and how many GPUs they join; network; most and idle W."""


def _gpu(line: str) -> GpuClass:
    name, family, generation, *numbers = line.split()
    tflops, memory_gb, memory_tb, link_gb, domain, network_gb, power_w, idle_w = map(float, numbers)
    return GpuClass(
        name=name,
        family=family,
        generation=generation,
        matmul_flops=tflops * 1e12,
        memory_bytes=memory_gb * 1e9,
        memory_bytes_per_s=memory_tb * 1e12,
        link_bytes_per_s=link_gb * 1e9,
        domain=int(domain),
        network_bytes_per_s=network_gb * 1e9,
        power_w=power_w,
        idle_w=idle_w,
    )


CLASSES = {each.name: each for each in map(_gpu, _TABLE.strip().splitlines()[1:])}
FAMILIES = tuple(dict.fromkeys(each.family for each in CLASSES.values()))

PUBLISHED = {
    "A100-80GB-SXM": "a100",
    "A100-40GB-SXM": "a100-40gb",
    "A100-SXM-vTrain": "a100-100g",
    "H100-80GB-SXM": "h100",
    "H100-96GB-HBM2e-500W": "h100-500w",
    "H200-141GB-SXM": "h200",
    "B200-SXM-180GB": "b200",
    "B300-SXM": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S-48GB": "l40s",
}
"""Names of GPUs in tables of measured configurations, and which class each is."""


_PUBLISHED = {name.lower(): ours for name, ours in PUBLISHED.items()}

_SAYS_NOTHING = re.compile(
    r"nvidia|tensor|core|gpu|sxm[2-6]?|hbm(2e|3|3e)|nvl72|"
    r"(80|141|144|180|186|192|279|288|48)(gb|gib)?|gb|gib"
)
"""Words of a name that do not tell apart what the table tells apart. PCIe and NVL do: such cards
have other links and watts, and are none of these."""


def _by_words(name: str) -> GpuClass | None:
    """Find a class in names such as `NVIDIA H100 80GB HBM3`, `A100-SXM4-40GB`."""
    words = [each for each in re.split(r"[\s_\-]+", name.lower()) if each]
    left = [each for each in words if not _SAYS_NOTHING.fullmatch(each)]
    if left == ["a100", "40gb"]:
        return CLASSES["a100-40gb"]
    return CLASSES.get(left[0]) if len(left) == 1 else None


def gpu_class(name: str) -> GpuClass:
    """Find a class by our name, a published one, or one that a driver or a cloud gives it.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    key = name.strip()
    found = CLASSES.get(_PUBLISHED.get(key.lower(), key.lower())) or _by_words(key)
    if found is None:
        raise KeyError(f"no GPU is known as {key[:40]!r}; known are {', '.join(sorted(CLASSES))}")
    return found
