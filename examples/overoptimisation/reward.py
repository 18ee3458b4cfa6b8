"""The proxy: how positive a lexicon finds the words, from -1 to 1. It reads words, not reviews."""

from __future__ import annotations

from collections.abc import Sequence

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

_ANALYSER = SentimentIntensityAnalyzer()


def lexicon(completions: Sequence[str]) -> list[float]:
    """VADER's compound score of each text."""
    return [_ANALYSER.polarity_scores(text)["compound"] for text in completions]
