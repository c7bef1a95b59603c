"""pyproject.toml asks for exactly what the code imports, and each line of it has a reason."""

from __future__ import annotations

import ast
import re
import sys

from packaging.requirements import Requirement

from tests.support import tidy
from tests.support.repository import PACKAGES, ROOT, module_name, package_files

DISTRIBUTIONS = {
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "llvmlite": "numba",  # numba's own half; always of the version that numba wants
    "prometheus_client": "prometheus-client",
    "yaml": "pyyaml",
}
"""Import name -> distribution, where they differ."""


def requirements(name: str) -> list[Requirement]:
    """The list called ``name`` in pyproject.toml (Python 3.10 has no reader of TOML)."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^{name} = \[(.*?)\]\n", text, re.M | re.S)
    assert found, f"pyproject.toml has no list {name!r}"
    return [Requirement(quoted) for quoted in re.findall(r'"([^"]+)"', found.group(1))]


def imported_distributions() -> set[str]:
    """Distributions that the shipped code imports, at the top of a file or later."""
    tops: set[str] = set()
    for path in package_files():
        tree = ast.parse(path.read_text())
        is_package = path.name == "__init__.py"
        names = tidy.imported_modules(tree, module_name(path), is_package=is_package)
        tops |= {name.partition(".")[0] for name in names}
    tops |= {"google"}  # only generated code imports it
    foreign = tops - set(sys.stdlib_module_names) - set(PACKAGES)
    return {DISTRIBUTIONS.get(top, top) for top in foreign}


def test_the_core_is_what_the_code_imports() -> None:
    core = {requirement.name for requirement in requirements("dependencies")}
    extras = ("compression", "hardware", "pcap")
    optional = {r.name for extra in extras for r in requirements(extra)}
    assert imported_distributions() - optional == core


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = re.search(r"^## Dependencies\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section
    listed = re.findall(r"^\| `([\w-]+)` \|[^|]+\| [^|]{15,} \|$", section.group(1), re.M)
    lists = ("dependencies", "compression", "hardware", "pcap", "test")
    wanted = {r.name for name in lists for r in requirements(name)}
    assert sorted(listed) == sorted(wanted)
