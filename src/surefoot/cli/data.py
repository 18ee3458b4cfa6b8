"""``surefoot data``: cards, audit, catalogue. The commands' signatures; what they do is imported late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXITS = "Exit codes: 0 done; 2 something to put right, nothing was written; 130 Ctrl-C."
AUDIT_EXITS = (
    "Exit codes: 0 no error (there may be warnings); 1 a finding of severity error; 2 something to put right; "
    "130 Ctrl-C."
)

data_app = typer.Typer(no_args_is_help=True, help="Data cards, audit, versions.", epilog=EXITS)

DataPath = Annotated[str, typer.Argument(metavar="FILE", help="A JSONL or Parquet file, or a folder of them.")]
Catalogue = Annotated[Path, typer.Option("--catalogue", help="The folder that holds registered versions.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for programs.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="column, label, tokenizer (a folder), max_characters, max_tokens, names (a spaCy pipeline).",
    ),
]


@data_app.command("card", epilog=EXITS)
def card(
    file: DataPath,
    renew: Annotated[
        bool, typer.Option("--renew", help="Data that changed: its digest of now, and approval pending.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a card to be filled in, FILE.card.yaml; or check the one that is there."""
    from surefoot.cli.data_versions import run_card

    raise typer.Exit(run_card(file, renew=renew, as_json=as_json))


@data_app.command("audit", epilog=AUDIT_EXITS)
def audit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSONL or Parquet file, a folder, or a hub id.")],
    settings: Settings = None,
    against: Annotated[str | None, typer.Option("--against", help="Evaluation data that must not be in FILE.")] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="Cross-validated scores of preference pairs, JSONL.")
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Write the summary to FILE.audit.yaml, for lineages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for duplicates, leaks, personal data, secrets, injected instructions, odd text, suspicious labels."""
    from surefoot.cli.data_audit import Where, run_audit

    raise typer.Exit(run_audit(file, settings or [], Where(against, scores), save=save, as_json=as_json))


@data_app.command("register", epilog=EXITS)
def register(
    file: DataPath,
    catalogue: Catalogue = Path("catalogue"),
    keep_copy: Annotated[bool, typer.Option("--keep-copy", help="Copy the data into the catalogue.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register the version that FILE's card names: written once, never changed."""
    from surefoot.cli.data_versions import run_register

    raise typer.Exit(run_register(file, catalogue, keep_copy=keep_copy, as_json=as_json))


Version = Annotated[str, typer.Argument(help="NAME@VERSION of a registered version, or a file or folder.")]


@data_app.command("diff", epilog=EXITS)
def diff(
    first: Version,
    second: Version,
    key: Annotated[str | None, typer.Option("--key", help="The column that rows are told by.")] = None,
    catalogue: Catalogue = Path("catalogue"),
    as_json: AsJson = False,
) -> None:
    """Rows, columns and fields of the card in which two versions differ."""
    from surefoot.cli.data_versions import run_diff

    raise typer.Exit(run_diff(first, second, key=key, catalogue=catalogue, as_json=as_json))


@data_app.command("where-used", epilog=EXITS)
def where_used(
    name: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="A registered data set, or one version.")],
    runs: Annotated[
        list[Path] | None, typer.Option("--runs", help="A folder with run folders; may be given again. [runs]")
    ] = None,
    catalogue: Catalogue = Path("catalogue"),
    as_json: AsJson = False,
) -> None:
    """Runs that used the data, and models made from it, directly or through other models."""
    from surefoot.cli.where_used import run_where_used

    raise typer.Exit(run_where_used(name, runs or [Path("runs")], catalogue=catalogue, as_json=as_json))
