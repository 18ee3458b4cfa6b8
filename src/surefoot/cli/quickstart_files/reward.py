"""The quickstart's reward: how positive a review sounds, from -1 to 1. An ordinary Python file, as yours would be.

VADER (Hutto & Gilbert 2014, PyPI package vaderSentiment) adds up the valence of the words it knows. It is a proxy: it
reads no sense, and a policy without a KL penalty finds that out (a heap of praising words scores 1).
"""

from typing import Any

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

_analyzer = SentimentIntensityAnalyzer()


def sentiment(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
    """One score a completion, in their order; a text without a word that VADER knows, an empty one too, scores 0."""
    return [float(_analyzer.polarity_scores(_text(completion))["compound"]) for completion in completions]


def _text(completion: Any) -> str:
    """Completions are plain text here, always; a trainer that passes a chat's answer as messages is served too."""
    return completion if isinstance(completion, str) else " ".join(message["content"] for message in completion)
