"""Links in the documents lead somewhere, and no file of the tree names a folder of somebody's machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    p for p in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))) if p.exists()
]

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//")

# Put together from pieces, so that this file does not hold what it looks for.
FOLDERS = ("root", "home", "Users", "work")
MACHINE_PATH = re.compile(rf"(?<![A-Za-z0-9_.])/(?:{'|'.join(FOLDERS)})/")


def dead_links(page: Path) -> list[str]:
    """Relative links of a Markdown page that lead to no file, or to no heading of the file."""
    dead = []
    for found in LINK.finditer(prose(page)):
        link = found[1] or found[2]
        if OUTSIDE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            dead.append(f"{page.name}: {link}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            dead.append(f"{page.name}: {link} (no such heading)")
    return dead


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them (a repeated heading gets a number)."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if i == 0 else f"{slug}-{i}" for slug, count in found.items() for i in range(count + 1)}


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def machine_paths(file: Path) -> list[str]:
    """Lines of a text file with an absolute path of a machine; none for a binary file."""
    data = file.read_bytes()
    if b"\0" in data:
        return []
    lines = enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1)
    return [f"{file.name}:{number}: {line.strip()[:100]}" for number, line in lines if MACHINE_PATH.search(line)]


def project_files() -> list[Path]:
    """What is or would be under version control; without git, everything but hidden and generated folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    skipped = re.compile(r"\.(?!ci$|gitignore$)|(runs|build|dist|__pycache__)$|.*\.egg-info$")
    files = [p for p in ROOT.rglob("*") if p.is_file()]
    return [p for p in files if not any(skipped.match(part) for part in p.relative_to(ROOT).parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_no_file_names_a_folder_of_a_machine() -> None:
    files = project_files()
    assert ROOT / "pyproject.toml" in files
    assert Path(__file__) in files
    assert [line for file in files for line in machine_paths(file)] == []


# ------------------------------------------------------------------------------------ that these tests can fail


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `word`, two\n\n## Twice\n\n## Twice\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n"
        "[ok](other.md) [ok](other.md#a-word-two) [ok](other.md#twice-1) [ok](#here) [ok](https://example.org/x)\n"
        "![ok](other.md 'a title') [dead](gone.md) [dead](other.md#gone) [dead](#gone)\n"
        "[ref]: gone-too.md\n"
        "```\n[not a link](in-code.md)\n```\n",
        encoding="utf-8",
    )
    assert dead_links(page) == [
        "page.md: gone.md",
        "page.md: other.md#gone (no such heading)",
        "page.md: #gone (no such heading)",
        "page.md: gone-too.md",
    ]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("before", ["", "cd ", '"', "file://", "~"])
def test_a_path_of_a_machine_is_seen(tmp_path: Path, folder: str, before: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(f"first\n{before}/{folder}/someone/model\n", encoding="utf-8")
    assert len(machine_paths(file)) == 1


def test_other_paths_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("runs/home/x ./work/x https://example.org/home/x /usr/bin/env /workspace/x\n", encoding="utf-8")
    assert machine_paths(file) == []
