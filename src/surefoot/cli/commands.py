"""The commands, with their help; what they do is imported when one is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from surefoot.cli.data import data_app
from surefoot.cli.interrupts import Stopped

EXITS = "Exit codes: 0 done; 2 something to put right, nothing was written"
RUN_EXITS = f"{EXITS}; 3 trouble in the run, its last checkpoint is whole; 130, 143 ended by Ctrl-C or SIGTERM."
READ_EXITS = f"{EXITS}; 130 Ctrl-C."
PLAN_EXITS = "Exit codes: 0 it fits; 1 it does not; 2 something to put right; 130 Ctrl-C. Nothing is ever written."
SERVE_EXITS = (
    "Exit codes: 0 ended by SIGTERM or Ctrl-C, requests under way were answered; 2 something to put right; "
    "3 what stands in the journal cannot be applied; 130, 143 ended at once by a second signal. Nothing is ever lost."
)
PIPELINE_EXITS = (
    "Exit codes: 0 all stages are done; 2 something to put right, nothing was run; otherwise that of the stage that "
    "ended the pipeline."
)
EVAL_EXITS = (
    "Exit codes: 0 it passed; 1 it did not, the report says why; 2 something to put right, nothing was written; "
    "130 Ctrl-C, scores so far are kept."
)
CHECK_EXITS = "Exit codes: 0 no problem (there may be warnings); 2 a problem; 130 Ctrl-C. Nothing is ever written."


class _Commands(TyperGroup):
    """Lets Ctrl-C through to :func:`surefoot.cli.main.main`; the library would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="PPO for language models: right, resumable, explained.",
    epilog=RUN_EXITS,
)
runs_app = typer.Typer(no_args_is_help=True, help="Look at run folders.", epilog=READ_EXITS)
app.add_typer(runs_app, name="runs")
app.add_typer(data_app, name="data")
eval_app = typer.Typer(no_args_is_help=True, help="Test what was made.", epilog=READ_EXITS)
app.add_typer(eval_app, name="eval")

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config; docs/config.md has every key.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="Keys to set, as ppo.kl.coef=0.02.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for programs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the run folder's last checkpoint.")]
Show = Annotated[
    int | None, typer.Option("--show", metavar="N", help="Print the first N rows as they would be trained on; no more.")
]


@app.command(epilog=RUN_EXITS)
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Align a model with PPO, as the config says."""
    from surefoot.cli.train import run_train

    raise typer.Exit(run_train(config, overrides or [], resume=resume, as_json=as_json))


@app.command(epilog=RUN_EXITS)
def sft(
    config: ConfigPath, overrides: Overrides = None, resume: Resume = False, show: Show = None, as_json: AsJson = False
) -> None:
    """Fine-tune a model on demonstrations, as the config's section sft says.

    Chats, prompts with completions, or texts; the loss is on the assistant's tokens only.
    """
    from surefoot.cli.sft import run_sft

    raise typer.Exit(run_sft(config, overrides or [], resume=resume, show=show, as_json=as_json))


@app.command("reward-model", epilog=RUN_EXITS)
def reward_model(
    config: ConfigPath, overrides: Overrides = None, resume: Resume = False, show: Show = None, as_json: AsJson = False
) -> None:
    """Train a reward model on preferences, as the config's section reward_model says.

    Pairs, ratings or judgements; saved as a standard sequence classifier, with its calibration.
    """
    from surefoot.cli.reward_model import run_reward_model

    raise typer.Exit(run_reward_model(config, overrides or [], resume=resume, show=show, as_json=as_json))


@app.command(epilog=f"{EXITS}; 3 trouble on the way, nothing was written; 130 Ctrl-C.")
def sample(config: ConfigPath, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Let the policy answer each prompt several times, as tasks for people to judge."""
    from surefoot.cli.sample import run_sample

    raise typer.Exit(run_sample(config, overrides or [], as_json=as_json))


@app.command(epilog=PIPELINE_EXITS)
def pipeline(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline; docs/pipeline.md has an example.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="STAGE.SECTION.KEY=VALUE", help="Keys of a stage to set.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="STAGE", help="Run this stage anew.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and why; run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tuning, reward model, PPO, evaluation as one file: runs the stages whose inputs have changed.

    After any kill the same command goes on where it was.
    """
    from surefoot.cli.pipeline import run_pipeline_file

    raise typer.Exit(run_pipeline_file(file, overrides or [], start=start, dry_run=dry_run, as_json=as_json))


@app.command(epilog=CHECK_EXITS)
def check(config: ConfigPath, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Try a config out in seconds: what would otherwise be found after hours.

    Tokens, template and lengths, the reward on real samples, step-0 identities, memory, common mistakes.
    """
    from surefoot.cli.check import run_check

    raise typer.Exit(run_check(config, overrides or [], as_json=as_json))


@app.command(epilog=PLAN_EXITS)
def plan(config: ConfigPath, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """How much memory a run will need, by role and by phase, before anything is loaded."""
    from surefoot.cli.plan import run_plan

    raise typer.Exit(run_plan(config, overrides or [], as_json=as_json))


class LogKind(StrEnum):
    """How a service logs."""

    JSON = "json"
    TEXT = "text"


@app.command(epilog=SERVE_EXITS)
def serve(
    config: ConfigPath,
    overrides: Overrides = None,
    host: Annotated[str | None, typer.Option("--host", help="Instead of serve.host.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Instead of serve.port; 0: any that is free.")] = None,
    log: Annotated[LogKind, typer.Option("--log", help="json: an object a line; text: for people.")] = LogKind.JSON,
) -> None:
    """Serve the critic, the reward model or both to trainers, as the config's section serve says.

    Prints the address on stdout once it listens. The critic's state and its journal are in serve.dir.
    """
    from surefoot.cli.serve import run_serve

    raise typer.Exit(run_serve(config, overrides or [], host=host, port=port, log=log.value))


@app.command(epilog=RUN_EXITS)
def quickstart(
    size: Annotated[
        str, typer.Option("--size", help="full, or tiny: a toy of a minute that needs no download.")
    ] = "full",
    folder: Annotated[Path, typer.Option("--dir", help="Where the run folder goes.")] = Path("runs"),
) -> None:
    """Align a real model on this machine's CPU in minutes, explained as it goes."""
    from surefoot.cli.quickstart import run_quickstart

    raise typer.Exit(run_quickstart(size=size, folder=folder))


RunsDir = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds run folders, or one of them.")]


@runs_app.command("list", epilog=READ_EXITS)
def runs_list(folder: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """The runs in a folder: how each stands, its last step and its scores."""
    from surefoot.cli.runs import list_runs

    raise typer.Exit(list_runs(folder, as_json=as_json))


@runs_app.command("compare", epilog=READ_EXITS)
def runs_compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Two runs side by side: what differs in config and inputs, and how the metrics ended."""
    from surefoot.cli.runs import compare_runs

    raise typer.Exit(compare_runs(first, second, as_json=as_json))


@eval_app.callback()
def _eval() -> None:
    """Test what was made: now reward models."""


@eval_app.command("reward-model", epilog=EVAL_EXITS)
def eval_reward_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The reward model's folder, or a hub id.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="segment (a column), words (a list), max_pairs, probe_pairs, min_gap, bad_rows, transcripts, "
            "ensemble, dtype, device, batch_tokens; bounds: accuracy, segment_accuracy, shift, shift.PROBE.",
        ),
    ] = None,
    pairs: Annotated[str, typer.Option("--pairs", metavar="FILE", help="Preferences it was not trained on.")] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the report goes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Does a reward model order pairs as people did, and do scores move when only the surface of an answer changes?

    Accuracy by segment and length, calibration, probes, roles. Writes report.json, which a reward term can ask for.
    """
    from surefoot.cli.eval_reward_model import run_eval_reward_model

    if not pairs:
        raise typer.BadParameter("name the pairs: --pairs FILE")
    raise typer.Exit(run_eval_reward_model(model, pairs, out, settings or [], as_json=as_json))
