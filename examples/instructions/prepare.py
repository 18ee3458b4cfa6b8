"""Prompts with instructions that a rule can check: ``python prepare.py OUT``. Everything is made here, by seed.

A prompt asks for something about a topic and adds one or two constraints. Topics are parted between training and
measuring, and some kinds of constraints are never trained on, so three groups are measured:

* ``seen kinds``: trained kinds of constraints, topics that were never trained on;
* ``new kinds``: kinds of constraints that were never trained on, on those topics;
* ``mixed``: one of each in a prompt.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surefoot.training.durable import json_bytes, write_file

TASKS: Final = ("Write a short text about {}.", "Tell me something about {}.", "What should a child know about {}?")
TOPICS: Final = (
    *("bread", "the moon", "bicycles", "honey bees", "trains", "snow", "rivers", "libraries", "clocks", "salt"),
    *("volcanoes", "cats", "maps", "bridges", "tea", "whales", "mountains", "paper", "lighthouses", "gardens"),
    *("music", "deserts", "soap", "kites", "forests", "horses", "coffee", "glass", "stars", "wool"),
    *("chess", "rain", "ships", "apples", "mirrors", "owls", "castles", "ice cream", "tunnels", "candles"),
    *("oceans", "markets", "penguins", "windmills", "letters", "potatoes", "dancing", "islands", "shoes", "spiders"),
    *("winter", "cheese", "telescopes", "farms", "dolphins", "umbrellas", "schools", "carpets", "rockets", "sleep"),
)
HELD_OUT: Final = 20
"""Topics that are only measured on."""
WORDS: Final = ("light", "people", "water", "old", "home", "work", "small", "world", "time", "long")

Made = tuple[str, dict[str, Any]]
TRAINED: Final[Mapping[str, Callable[[random.Random], Made]]] = {
    "lower": lambda dice: ("Use only lowercase letters.", {"kind": "case", "case": "lower"}),
    "no_commas": lambda dice: ("Do not use any commas.", {"kind": "no_commas"}),
    "words_at_most": lambda dice: _counted(dice, "Use at most {} words.", "words", "at_most", (15, 20, 25, 30)),
    "sentences": lambda dice: _counted(dice, "Answer in exactly {} sentences.", "sentences", "exactly", (2, 3)),
    "keyword": lambda dice: _worded(dice, 'Use the word "{}".', lambda w: {"kind": "keywords", "present": [w]}),
    "bullets": lambda dice: _counted(dice, "Write exactly {} bullet points.", "bullets", "exactly", (2, 3)),
    "quoted": lambda dice: ("Put your whole answer in double quotes.", {"kind": "quoted"}),
}
NEW: Final[Mapping[str, Callable[[random.Random], Made]]] = {
    "upper": lambda dice: ("Use only capital letters.", {"kind": "case", "case": "upper"}),
    "words_at_least": lambda dice: _counted(dice, "Use at least {} words.", "words", "at_least", (25, 30, 35)),
    "ends_with": lambda dice: ('End with "That is all."', {"kind": "ends_with", "text": "That is all."}),
    "numbered": lambda dice: _counted(
        dice, "Write a numbered list of exactly {} items.", "numbered_items", "exactly", (2, 3)
    ),
    "starts_with": lambda dice: ('Begin with "In short".', {"kind": "starts_with", "text": "In short"}),
}


BESIDE: Final = ("lower", "no_commas", "words_at_most", "keyword")
"""Trained kinds that can stand beside any other trained one."""
MIXED: Final = ("no_commas", "words_at_most", "sentences", "keyword")
"""Trained kinds that can stand beside a beginning in capitals."""


def _counted(dice: random.Random, text: str, kind: str, bound: str, numbers: Sequence[int]) -> Made:
    number = dice.choice(numbers)
    return text.format(number), {"kind": kind, bound: number}


def _worded(dice: random.Random, text: str, constraint: Callable[[str], dict[str, Any]]) -> Made:
    word = dice.choice(WORDS)
    return text.format(word), constraint(word)


def row(dice: random.Random, topic: str, group: str, kinds: Sequence[str]) -> dict[str, Any]:
    """A prompt with its constraints."""
    made = [(TRAINED | NEW)[kind](dice) for kind in kinds]
    asked = " ".join([dice.choice(TASKS).format(topic), *(text for text, _ in made)])
    return {
        "prompt": [{"role": "user", "content": asked}],
        "constraints": [constraint for _, constraint in made],
        "about": [{"kind": "keywords", "present": [topic.split()[-1]]}],
        "kinds": list(kinds),
        "group": group,
        "topic": topic,
    }


def prompts(seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Both files by name."""
    dice = random.Random(seed)
    topics = list(TOPICS)
    dice.shuffle(topics)
    measured, trained = topics[:HELD_OUT], topics[HELD_OUT:]
    training = [
        row(dice, topic, "training", [kind, *other])
        for topic in trained
        for kind in TRAINED
        for other in ([], [dice.choice([k for k in BESIDE if k != kind])])
    ]
    held_out = [row(dice, topic, "seen kinds", [kind]) for topic in measured for kind in TRAINED]
    held_out += [row(dice, topic, "new kinds", [kind]) for topic in measured for kind in NEW]
    held_out += [row(dice, topic, "mixed", [dice.choice(MIXED), "starts_with"]) for topic in measured]
    return {"train.jsonl": training, "held-out.jsonl": held_out}


def main(out: Path) -> None:
    """Write both files."""
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in prompts().items():
        write_file(out / name, b"".join(map(json_bytes, rows)))
        sys.stdout.write(f"{out / name}: {len(rows)} prompts\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
