"""Which packages a build holds: what is found below the rooms. The rest is in pyproject.toml.

The rooms stand at the root of the repository and are imported as wattmesh.<room>
(docs/decisions/0001-packaging.md); the links in wattmesh/ say the same to editors, type checkers
and a bare checkout, and a build never follows them.
"""

from setuptools import find_packages, setup

ROOMS = ("controller", "integrations", "migrations", "policies", "reconfig", "telemetry")

TRAINER = "wattmesh.controller.demo.trainer"
"""What `wattmesh demo` trains is the example, in a folder that is on no other program's path."""

below = find_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)])
example = ("examples", "examples.pretrain")
names = ["wattmesh", *(f"wattmesh.{name}" for name in below)]

setup(
    packages=[*names, *(f"{TRAINER}.{name}" for name in example)],
    package_dir={
        **{f"wattmesh.{name}": name.replace(".", "/") for name in below},
        **{f"{TRAINER}.{name}": name.replace(".", "/") for name in example},
    },
)
