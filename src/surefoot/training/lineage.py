"""Lineage: every input of a run with its digest, so that a result can be traced and a resume can be held to it.

Torch-free: the number of threads and the device in use are handed in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import surefoot
from surefoot.config import Config
from surefoot.data.cards import card_of
from surefoot.data.catalogue import saved_audit
from surefoot.data.formats import prompt_files
from surefoot.errors import DataError, RunFolderError
from surefoot.records import Lineage
from surefoot.training.durable import digest_file, json_bytes, parse_json, write_file, writing

logger = logging.getLogger("surefoot")

MODEL_FILES: Final = ("*.safetensors", "*.json", "tokenizer*", "*.txt", "*.model", "*.jinja", "*.py")
"""What a model folder's digest covers: weights, settings, tokenizer, template and code."""
NUMERIC_PACKAGES: Final = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "peft",
    "bitsandbytes",
    "safetensors",
    "datasets",
    "pyarrow",
    "surefoot",
)
"""Packages whose version can change results: a resume warns of them."""
_ISA: Final = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
_NUMERIC_VARIABLES: Final = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")


def digest_folder(path: Path, patterns: Sequence[str] = MODEL_FILES) -> dict[str, Any]:
    """Digests of the files in a folder that match, subfolders left out.

    Returns:
        ``files``: name to sha256; ``sha256``: that of the lines ``DIGEST  NAME``, sorted by name.
    Raises:
        DataError: no file matches.
    """
    matching = sorted({f for pattern in patterns for f in path.glob(pattern) if f.is_file()})
    if not matching:
        raise DataError("there is nothing to take a digest of", got=str(path), allowed=", ".join(patterns))
    return _digest_of({file.name: file for file in matching})


def digest_data_folder(path: Path) -> dict[str, Any]:
    """As :func:`digest_folder`, of all the files that reading the folder's prompts reads, by their relative paths."""
    return _digest_of({file.relative_to(path).as_posix(): file for file in prompt_files(path)})


def _digest_of(found: Mapping[str, Path]) -> dict[str, Any]:
    files = {name: digest_file(file) for name, file in found.items()}
    listing = "".join(f"{digest}  {name}\n" for name, digest in files.items())
    return {"sha256": hashlib.sha256(listing.encode()).hexdigest(), "files": files}


def describe_input(place: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """An input as the lineage holds it.

    Args:
        place: a file, a folder, or a hub id (which has no digest here).
        kind: ``model``, ``data``, ``code`` or ``report``.
    Returns:
        ``kind``, ``path``, ``sha256`` (None for a hub id), and ``files`` for a folder; of data with a card that
        ``card``, and the summary of its last ``audit`` where one was saved.
    """
    path = Path(place)
    found: dict[str, Any] = {"kind": kind, "path": str(place), "sha256": None}
    if path.is_dir():
        found.update(digest_data_folder(path) if kind == "data" else digest_folder(path))
    elif path.is_file():
        found["sha256"] = digest_file(path)
    if kind == "data" and found["sha256"] is not None:
        card, audit = card_of(path, check=False), saved_audit(path, found["sha256"])
        found.update({} if card is None else {"card": card.model_dump(mode="json")})
        found.update({} if audit is None else {"audit": audit})
    return found


def describe_function(target: str) -> dict[str, Any]:
    """The source of a function named ``file.py:name`` or ``package.module:name``, as an input of kind ``code``."""
    place = target.rpartition(":")[0] or target
    if place.endswith(".py"):
        found = describe_input(place, "code")
    else:
        # The worker that runs the function looks in the working directory as well.
        before = list(sys.path)
        sys.path.append(str(Path.cwd()))
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, ValueError):
            spec = None
        finally:
            sys.path[:] = before
        found = {"kind": "code", "path": place, "sha256": None}
        if spec is not None and spec.origin and Path(spec.origin).is_file():
            found["sha256"] = digest_file(Path(spec.origin))
    return {**found, "target": target}


def describe_ratings(place: str) -> dict[str, Any]:
    """A file of people's ratings, or a folder of them, as an input of kind ``ratings``: it may grow during a run."""
    path = Path(place)
    found: dict[str, Any] = {"kind": "ratings", "path": place, "sha256": None}
    if path.is_dir():
        files = {file.name: file for file in sorted(path.glob("*.jsonl"))}
        return found | (_digest_of(files) if files else {})
    return found | ({"sha256": digest_file(path)} if path.is_file() else {})


def package_versions() -> dict[str, str]:
    """Every installed distribution with its version, sorted by name."""
    names = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(names.items(), key=lambda item: item[0].lower()))


def machine(*, threads: int | None = None, device: str | None = None) -> dict[str, Any]:
    """Where the run takes place: what results on a CPU depend on, and what they cost.

    Args:
        threads: CPU threads torch uses.
        device: the device the run uses.
    """
    fields = _cpu_fields()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "isa": [name for name in _ISA if name in flags],
        "cores": os.cpu_count(),
        "threads": threads,
        "device": device,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "environment": {name: os.environ[name] for name in _NUMERIC_VARIABLES if name in os.environ},
    }


def _cpu_fields() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def code() -> dict[str, Any]:
    """Which Surefoot this is: version, git commit (in a checkout) and the digest of its source."""
    package = Path(surefoot.__file__).resolve().parent
    listing = "".join(
        f"{digest_file(file)}  {file.relative_to(package).as_posix()}\n" for file in sorted(package.rglob("*.py"))
    )
    root = package.parent.parent if package.parent.name == "src" else package.parent
    return {
        "version": surefoot.__version__,
        "commit": _git_commit(root / ".git"),
        "sha256": hashlib.sha256(listing.encode()).hexdigest(),
    }


def _git_commit(git: Path) -> str | None:
    """The commit that is checked out, read from the files: there may be no git, or one that distrusts the folder."""
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text(encoding="utf-8").strip()
        packed = (line.split() for line in (git / "packed-refs").read_text(encoding="utf-8").splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), None)
    except OSError:
        return None


def build_lineage(
    config: Config,
    *,
    inputs: Mapping[str, Mapping[str, Any]],
    threads: int | None = None,
    device: str | None = None,
) -> Lineage:
    """All that a run's results rest on.

    Args:
        config: the run's config.
        inputs: by name (``policy``, ``reference``, ``critic``, ``tokenizer``, ``prompts``, ``evaluate``,
            ``reward/TERM``), each from :func:`describe_input` or :func:`describe_function`.
        threads: CPU threads torch uses.
        device: the device the run uses.
    """
    return Lineage(
        run=config.run.name or "",
        inputs={name: dict(found) for name, found in inputs.items()},
        packages=package_versions(),
        seed=config.run.seed,
        machine=machine(threads=threads, device=device),
        code=code(),
    )


def write_lineage(path: Path, lineage: Lineage) -> None:
    """Write ``lineage.json`` whole; RunError when that fails."""
    with writing(path):
        write_file(path, json_bytes({"format": 1, **asdict(lineage)}, indent=1))


def read_lineage(path: Path) -> Lineage:
    """Read ``lineage.json``.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    try:
        stored = parse_json(path.read_bytes())
        return Lineage(**{name: stored[name] for name in Lineage.__slots__})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError("the run's lineage cannot be read", got=f"{path}: {error!r}") from error


def lineage_warnings(old: Lineage, new: Lineage) -> list[str]:
    """What keeps a resumed run from repeating the uninterrupted one, a sentence each; empty when nothing does.

    Args:
        old: the lineage in the run folder.
        new: that of the process that resumes it.
    Raises:
        RunFolderError: a model or data differs from what the run began with, or a reward was replaced.
    """
    changed, warnings = _changed_inputs(old.inputs, new.inputs)
    if changed:
        raise RunFolderError(
            "the run began with other inputs: " + "; ".join(changed),
            hint="put the inputs back as they were, or start another run under another run.name",
        )
    pairs = {name: (old.packages.get(name), new.packages.get(name)) for name in NUMERIC_PACKAGES}
    pairs["the source of surefoot"] = (old.code.get("sha256"), new.code.get("sha256"))
    for name in ("python", "cpu", "isa", "threads", "device", "environment"):
        pairs[name] = (old.machine.get(name), new.machine.get(name))
    warnings += [f"{name} was {was}, is {now}" for name, (was, now) in pairs.items() if was != now]
    if old.seed != new.seed:
        warnings.append(f"the seed was {old.seed}, is {new.seed}")
    return warnings


def _changed_inputs(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    changed: list[str] = []
    warnings: list[str] = []
    for name in sorted({*old, *new}):
        if name not in old or name not in new:
            changed.append(f"{name} was {'absent' if name not in old else 'there'}")
            continue
        was, now = old[name], new[name]
        same_place = was.get("path") == now.get("path")
        if was.get("sha256") is None and now.get("sha256") is None:
            if not same_place or was.get("revision") != now.get("revision"):
                changed.append(f"{name} was {was.get('path')}, is {now.get('path')}")
        elif was.get("sha256") != now.get("sha256"):
            what = f"{name} ({now.get('path')}) had sha256 {was.get('sha256')}, has {now.get('sha256')}"
            # The same file, edited: the usual way to mend a reward that stopped the run, or to answer what waited.
            (warnings if now.get("kind") in ("code", "ratings") and same_place else changed).append(what)
    return changed, warnings
