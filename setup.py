"""Which packages a build holds: all below the rooms and examples/. The rest: pyproject.toml.

The rooms stand at the root of the repository and are imported as wattmesh.<room>
(docs/decisions/0001-packaging.md); the links in wattmesh/ say the same to editors, type checkers
and a bare checkout, and a build never follows them. What uses wattmesh and is no part of it keeps
its name, `examples`, in a folder of the wheel that only `wattmesh demo` puts on its path
(docs/decisions/0045-demo.md).
"""

from setuptools import find_packages, setup

ROOMS = ("controller", "integrations", "migrations", "policies", "reconfig", "telemetry")

SHIPPED = "wattmesh.shipped"
"""The folder that holds `examples` in a wheel; controller/cli/services/demo.py looks there."""


def below(*folders: str) -> list[str]:
    """Find every package below folders of the root, themselves included."""
    return find_packages(include=[*folders, *(f"{folder}.*" for folder in folders)])


found = {
    **{f"wattmesh.{name}": name for name in below(*ROOMS)},
    **{f"{SHIPPED}.{name}": name for name in below("examples")},
}

setup(
    packages=["wattmesh", *found],
    package_dir={name: folder.replace(".", "/") for name, folder in found.items()},
)
