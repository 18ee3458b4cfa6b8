"""The prompts of the benchmark: short chats, the same ones on both sides."""

from __future__ import annotations

from typing import Final

SYSTEMS: Final = (
    "You answer questions helpfully.",
    "Reply in a few simple words.",
    "You are a patient teacher.",
    "Be polite and precise.",
)

QUESTIONS: Final = (
    "Which river flows through Vienna?",
    "Write two lines of verse about snow on an old wooden bridge.",
    "Why does ice float on water? Explain it to somebody who is nine years old.",
    "Name three habits that help against forgetting appointments.",
    "How long do I have to cook lentils that were not soaked before?",
    "List six animals of the desert, each with one thing that is special about it.",
    "What is a hash table?",
    "Tell me something amusing about cats and keyboards.",
    "My brother failed his driving test for the second time today. What can I write to him so that he feels better?",
    "What happens in the story of Little Red Riding Hood?",
    "Is the Moon or the planet Mercury larger?",
    "Write a friendly message that asks my neighbour to turn the music down after ten in the evening.",
    "What are good reasons to go to bed at the same time every day of the week?",
    "How do you say 'thank you' in Italian, Polish and Turkish?",
    "Why do we have leap years, and how often are they?",
    "Describe a quiet morning in a small harbour town.",
)


def chats(count: int) -> list[list[dict[str, str]]]:
    """That many different chats, at most 64: each question comes with alternating system messages.

    Raises:
        ValueError: there are not so many.
    """
    most = len(QUESTIONS) * len(SYSTEMS)
    if not 1 <= count <= most:
        raise ValueError(f"there are from 1 to {most} different prompts, got: {count}")
    out = []
    for i in range(count):
        round_, question = divmod(i, len(QUESTIONS))
        # Two system messages by turns; the second round swaps them, the third takes the other two.
        system = SYSTEMS[2 * (round_ // 2) + (question + round_) % 2]
        out.append([{"role": "system", "content": system}, {"role": "user", "content": QUESTIONS[question]}])
    return out
