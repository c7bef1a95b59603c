"""What test_tidy.py looks for. Each check takes text or a tree and returns its complaints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 600

# A bracket keeps each pattern from matching its own source.
_UNFINISHED = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X)\b")
_MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:work|root)(?![\w-])")
_REGISTRY = re.compile(
    r"py[p]i\.org|python[h]osted\.org|npm[j]s\.org|proxy\.go[l]ang\.org|docker\.[i]o"
    r"|index[-]url|https?://\S+/(?:simple|packages)/"
)
_KERNEL_FILE = re.compile(r"(^|/)(\w*kernels|kvlane/(jit|rawmem|calls|atomics))\.py$")
_QUOTED_MODULE = re.compile(r'"([a-z_]\w*(?:\.\w+)+)(?::\w+)?"')


@dataclass(frozen=True)
class Ban:
    """A name that must not be used, where it may be all the same, and what to use instead."""

    pattern: str
    instead: str
    allowed: str = r"(?!)"


_EDGE = r"^(host_driver/cli/|tests/|benchmarks/|scripts/|examples/)"
BANS = (
    Ban(
        r"random\.(?!Random$|SystemRandom$)\w+",
        "an rng passed in (kvlane.seams.Rng)",
        # Seeds what tests that are not ours draw from the one generator of the process.
        r"^tests/conformance/child\.py$",
    ),
    Ban(
        r"numpy\.random\.(?!Generator$|default_rng$)\w+",
        "np.random.default_rng(seed), passed in",
    ),
    Ban(
        r"time\.time(_ns)?|datetime\.datetime\.(now|utcnow|today)",
        "`now` passed in (kvlane.seams.Clock); time.monotonic_ns at an edge",
        # A verb of its own asks for the time of day of a completion.
        r"^(emulator/pyverbs/cq|tests/unit/emulator/test_pyverbs_cq)\.py$",
    ),
    Ban("print", "click.echo in host_driver/cli, logging elsewhere", _EDGE),
    Ban(
        r"os\.(environ|getenv|putenv)(\.\w+)?",
        "a field of the configuration, or an option of the command line",
        # The second hands its whole environment on to a child.
        rf"{_EDGE}|^proto/kvlane/jit\.py$|^host_driver/emulated\.py$",
    ),
    # It runs the text behind -c, as the interpreter does.
    Ban("eval|exec", "a table of functions", r"^emulator/pyverbs/__main__\.py$"),
)
_UNSEEDED = {"random.Random", "numpy.random.default_rng"}


def unfinished(text: str) -> list[str]:
    """Marks of work left undone."""
    return [f"line {n}: {line.strip()}" for n, line in _lines(text) if _UNFINISHED.search(line)]


def foreign_places(text: str) -> list[str]:
    """Paths of one machine, and addresses of a package registry."""
    return [
        f"line {n}: {line.strip()}"
        for n, line in _lines(text)
        if _MACHINE_PATH.search(line) or _REGISTRY.search(line)
    ]


def too_long_file(text: str) -> list[str]:
    """A file that holds more than one idea."""
    count = text.count("\n")
    return [f"{count} lines; split it"] if count > MAX_FILE_LINES else []


def too_long_functions(tree: ast.AST) -> list[str]:
    """Functions that do not fit a screen."""
    complaints = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                complaints.append(f"{node.name} has {length} lines; at most {MAX_FUNCTION_LINES}")
    return complaints


def stray_kernels(tree: ast.AST, path: str) -> list[str]:
    """The JIT used outside a kernel module, where the cache digest would not see an edit."""
    if _KERNEL_FILE.search(path):
        return []
    names = _imported_names(tree)
    used = {name for _, name in _used_names(tree, names)} | set(names.values())
    strays = sorted(n for n in used if n == "kvlane.jit.kernel" or n.split(".")[0] == "numba")
    return [f"{name} belongs in a module called *_kernels.py" for name in strays]


def banned_uses(tree: ast.AST, path: str) -> list[str]:
    """Uses of what BANS names, and generators without a seed."""
    names = _imported_names(tree)
    complaints = []
    for line, name in _used_names(tree, names):
        for ban in BANS:
            if re.fullmatch(ban.pattern, name) and not re.search(ban.allowed, path):
                complaints.append(f"line {line}: {name}; use {ban.instead}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            name = _dotted(node.func, names)
            if name in _UNSEEDED:
                complaints.append(f"line {node.lineno}: {name}() without a seed; pass one")
    return complaints


def asserts_nothing(tree: ast.AST) -> list[str]:
    """A test file that cannot fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            return []
        if isinstance(node, ast.Attribute) and node.attr in {"raises", "warns"}:
            return []
    return ["asserts nothing"]


def imported_modules(tree: ast.AST, module: str, *, is_package: bool) -> set[str]:
    """Dotted names that a file imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _import_base(node, module, is_package=is_package)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def named_modules(text: str) -> set[str]:
    """Dotted names in quotes, as a backend table or an entry point gives them."""
    return set(_QUOTED_MODULE.findall(text))


def dead_modules(modules: Iterable[str], used: set[str]) -> list[str]:
    """Modules that nothing uses; ``__main__`` is an entry point by its name."""
    return [m for m in sorted(modules) if m not in used and not m.endswith(".__main__")]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def _import_base(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    keep = len(parts) - node.level + (1 if is_package else 0)
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> the dotted name that an absolute import bound to it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """``np.random.rand`` as ``numpy.random.rand``; empty when it is no chain of names."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _used_names(tree: ast.AST, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every longest chain of names; a chain starts at an import or
    is a bare name, so that ``self.random.x`` is not mistaken for the module."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or id(node) in inner:
            continue
        root: ast.AST = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and (root is node or root.id in names):
            yield node.lineno, _dotted(node, names)
