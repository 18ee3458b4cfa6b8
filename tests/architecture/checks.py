"""The checkers behind the architecture tests: functions from a source tree to a list of complaints.

They read files and never import the tree (``heavy_imports`` excepted, which does it in another process), so that the
tests can also show them a small tree with a fault in it.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "surefoot"

# ---------------------------------------------------------------------------------------------------- layers

LAYERS: tuple[tuple[str, ...], ...] = (  # lowest first; the first four are layer 0, which has an order of its own
    ("errors",),
    ("records",),
    ("protocols",),
    ("config",),
    ("algo", "parallel", "sandbox", "toolpolicy"),
    ("models",),
    ("rollout", "envs", "rewards", "data"),
    ("evals", "monitor", "registry"),
    ("training",),
    ("serving",),
    ("assembly",),
    ("cluster", "gateway"),
    ("cli", "dashboard"),
    ("__main__",),
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
SIBLINGS_ALLOWED = {("rollout", "envs")}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "core"}
WEB_FRAMEWORKS = ("fastapi", "starlette", "uvicorn")


@dataclass(frozen=True)
class Import:
    """One imported name, written out in full: ``from surefoot import algo`` is ``surefoot.algo``."""

    line: int
    name: str


def python_files(package: Path) -> list[Path]:
    """All modules of a package, sorted."""
    return sorted(p for p in package.rglob("*.py") if "__pycache__" not in p.parts)


def module_parts(file: Path, package: Path) -> tuple[str, ...]:
    """``surefoot/algo/gae.py`` -> ``("surefoot", "algo", "gae")``; a package is named without ``__init__``."""
    parts = (package.name, *file.relative_to(package).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(file: Path, package: Path) -> Iterator[Import]:
    """Every import anywhere in a file: relative ones resolved, those in functions and under TYPE_CHECKING included.

    Also what slips past an import statement: ``import_module("...")``, ``__import__("...")`` and ``surefoot.x`` read
    as an attribute.
    """
    parts = module_parts(file, package)
    parent = parts if file.name == "__init__.py" else parts[:-1]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    aliases = [a for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    own_names = {package.name, *(a.asname for a in aliases if a.name == package.name)}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (Import(node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = _absolute(node.module or "", node.level, parent)
                yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(str(text)), *_]):
                if called in ("import_module", "__import__"):
                    level = len(text) - len(text.lstrip("."))
                    yield Import(node.lineno, _absolute(text[level:], level, parent))
            case ast.Attribute(value=ast.Name(id=name)) if name in own_names:
                yield Import(node.lineno, f"{package.name}.{node.attr}")


def _absolute(module: str, level: int, parent: tuple[str, ...]) -> str:
    if level == 0:
        return module
    if level > len(parent):
        return f"<beyond the top of {parent[0]}>"
    return ".".join([*parent[: len(parent) - level + 1], *([module] if module else [])])


def layer_breaks(package: Path = PACKAGE) -> list[str]:
    """Imports against the order of the layers, units without a layer, and names that say nothing."""
    breaks = [f"{_shown(d, package)}: a name that says nothing, choose what it is for" for d in _vague(package)]
    for file in python_files(package):
        parts = module_parts(file, package)
        if len(parts) == 1:
            continue  # the package's own __init__ is the lazy public face: it may name everything
        if parts[1] not in RANK:
            breaks.append(f"{_shown(file, package)}: {parts[1]!r} has no layer, give it one in checks.LAYERS")
            continue
        for found in imports_of(file, package):
            reason = _layer_break(parts[1], found.name, package)
            if reason:
                breaks.append(f"{_shown(file, package)}:{found.line}: {reason}")
    return breaks


def _layer_break(unit: str, imported: str, package: Path) -> str | None:
    top, _, rest = imported.partition(".")
    if top.startswith("<"):
        return f"imports from {imported}"
    if top != package.name:
        return None
    target = rest.split(".")[0]
    if target in ("", unit) or (target.startswith("__") and target not in RANK):
        return None  # itself, or what every package has: its __version__, its __file__
    if target not in RANK:
        return f"imports {imported}, which is the public face: import it from the module it lives in"
    if RANK[target] < RANK[unit] or (unit, target) in SIBLINGS_ALLOWED:
        return None
    return f"{unit} imports {imported}, " + ("a sibling" if RANK[target] == RANK[unit] else "which lies above it")


def _vague(package: Path) -> list[Path]:
    paths = [p for p in package.rglob("*") if p.is_dir() or p.suffix == ".py"]
    return sorted(p for p in paths if p.stem.strip("_") in FORBIDDEN_NAMES and "__pycache__" not in p.parts)


def home_breaks(package: Path = PACKAGE) -> list[str]:
    """Outside packages imported anywhere but in their home."""
    breaks = []
    for file in python_files(package):
        inside = file.relative_to(package)
        allowed = {
            "ray": inside.parts[0] == "cluster",
            "vllm": inside.as_posix() == "rollout/engine_vllm.py",
            **dict.fromkeys(WEB_FRAMEWORKS, inside.name in ("app.py", "handlers.py")),
        }
        for found in imports_of(file, package):
            name = found.name.split(".")[0]
            if not allowed.get(name, True):
                breaks.append(f"{_shown(file, package)}:{found.line}: {name} is imported outside its home")
    return breaks


def _shown(path: Path, package: Path) -> str:
    return path.relative_to(package.parent).as_posix()


# --------------------------------------------------------------------------------------------- light imports

HEAVY = ("torch", "transformers")
LIGHT = (  # a name stands for everything under it
    "errors",
    "records",
    "protocols",
    "config",
    "registry",
    "monitor",
    "evals.statistics",
    "evals.preference",
    "evals.report",
    "data.audit",
    "rewards",
    "serving.wire",
    "serving.client",
    "serving.replicas",
    "serving.journal",
    "sandbox",
    "toolpolicy",
    "gateway",
    "dashboard",
    "cli.main",
    "cli.commands",
)
NOT_LIGHT = ("monitor.sinks",)

_PROBE = """
import importlib, json, sys, traceback
modules, heavy, folder = json.loads(sys.argv[1])
sources = {}
class Recorder:
    def find_spec(self, name, path=None, target=None):
        if name in heavy:
            frames = [f for f in traceback.extract_stack() if f.filename.startswith(folder)]
            sources.setdefault(name, f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an outside package")
sys.meta_path.insert(0, Recorder())
for module in modules:
    importlib.import_module(module)
    loaded = [name for name in heavy if name in sys.modules]
    if loaded:
        print(json.dumps([module, {name: sources.get(name, "?") for name in loaded}]))
        break
"""


def light_modules(package: Path = PACKAGE) -> list[str]:
    """The modules that exist and may not load torch, the package itself first."""
    names = [".".join(module_parts(f, package)) for f in python_files(package)]

    def under(name: str, prefixes: Sequence[str]) -> bool:
        return any(f"{name}.".startswith(f"{package.name}.{prefix}.") for prefix in prefixes)

    return [package.name] + [n for n in names if under(n, LIGHT) and not under(n, NOT_LIGHT)]


def heavy_imports(modules: Iterable[str], package: Path = PACKAGE, heavy: Sequence[str] = HEAVY) -> list[str]:
    """Which of the modules load a heavy package, each with the line that asked for it.

    One fresh process imports them all; where one loads something heavy, another process goes on with the rest.
    """
    complaints, rest = [], list(modules)
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    while rest:
        command = [sys.executable, "-c", _PROBE, json.dumps([rest, list(heavy), str(package)])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [*complaints, f"one of {rest} cannot be imported:\n{done.stderr}"]
        if not done.stdout.strip():
            return complaints
        module, loaded = json.loads(done.stdout)
        complaints += [f"{module} loads {name}, from {source}" for name, source in loaded.items()]
        rest = rest[rest.index(module) + 1 :]
    return complaints


def process_seconds(command: Sequence[str]) -> tuple[float, str]:
    """User and system time that a command took, and what it printed. It must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout as stream:
        printed = stream.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, printed
    return usage.ru_utime + usage.ru_stime, printed


# ----------------------------------------------------------------------------------------------------- sizes

MAX_FILE_LINES = 400
MAX_FILE_LINES_IN = {"algo": 250}
MAX_MEDIAN_FILE_LINES = 170
MAX_FUNCTION_LINES = 60
MAX_P90_FUNCTION_LINES = 40
MAX_PARAMETERS = 7


@dataclass(frozen=True)
class Measure:
    """One thing with a size: a file's lines, a function's lines or a function's parameters."""

    kind: str
    subject: str
    value: int
    limit: int


@dataclass(frozen=True)
class Allowed:
    """A dated exception: exactly this value, until it shrinks."""

    date: str
    kind: str
    subject: str
    value: int
    reason: str


def read_allowed(file: Path) -> list[Allowed]:
    """Entries ``DATE KIND SUBJECT VALUE REASON``; ``#`` begins a comment line."""
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        date, kind, subject, value, reason = line.split(maxsplit=4)
        entries.append(Allowed(date, kind, subject, int(value), reason))
    return entries


def measures(package: Path = PACKAGE) -> list[Measure]:
    """Everything that has a limit of its own."""
    found = []
    for file in python_files(package):
        text, shown = file.read_text(encoding="utf-8"), _shown(file, package)
        limit = MAX_FILE_LINES_IN.get(file.relative_to(package).parts[0], MAX_FILE_LINES)
        found.append(Measure("file", shown, len(text.splitlines()), limit))
        for name, function in _functions(ast.parse(text), ""):
            subject = f"{shown}:{name}"
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            found.append(Measure("function", subject, lines, MAX_FUNCTION_LINES))
            found.append(Measure("parameters", subject, _parameters(function), MAX_PARAMETERS))
    return found


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _functions(child, f"{prefix}{child.name}." if scope else prefix)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = function.args
    named = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    bound = named[:1] in (["self"], ["cls"])
    return len(named) + (a.vararg is not None) + (a.kwarg is not None) - bound


def size_breaks(allowed: Sequence[Allowed] = (), package: Path = PACKAGE) -> list[str]:
    """What is too large, and exceptions that are no longer needed or larger than needed."""
    breaks, granted = [], {(a.kind, a.subject): a for a in allowed}
    found: dict[tuple[str, str], Measure] = {}
    for m in measures(package):  # overloads and property setters share a name: the largest counts
        key = (m.kind, m.subject)
        found[key] = max(found.get(key, m), m, key=lambda one: one.value)
    for key, m in found.items():
        entry = granted.pop(key, None)
        if m.value > (entry.value if entry else m.limit):
            breaks.append(f"{m.kind} {m.subject}: {m.value}, at most {entry.value if entry else m.limit}")
        elif entry and m.value <= m.limit:
            breaks.append(f"{m.kind} {m.subject}: {m.value} is within {m.limit}, take it off the allow-list")
        elif entry and m.value < entry.value:
            breaks.append(f"{m.kind} {m.subject}: shrank to {m.value}, lower its entry from {entry.value}")
    breaks += [f"{kind} {subject}: on the allow-list and not in the tree" for kind, subject in granted]
    return breaks + _spread_breaks(list(found.values()))


def _spread_breaks(found: Sequence[Measure]) -> list[str]:
    # An __init__ that only lists names would flatter the median.
    files = [m.value for m in found if m.kind == "file" and not m.subject.endswith("__init__.py")]
    functions = sorted(m.value for m in found if m.kind == "function")
    breaks = []
    if files and statistics.median(files) > MAX_MEDIAN_FILE_LINES:
        breaks.append(f"median of files: {statistics.median(files):g} lines, at most {MAX_MEDIAN_FILE_LINES}")
    if functions and (p90 := functions[(len(functions) * 9 - 1) // 10]) > MAX_P90_FUNCTION_LINES:
        breaks.append(f"90th percentile of functions: {p90} lines, at most {MAX_P90_FUNCTION_LINES}")
    return breaks
