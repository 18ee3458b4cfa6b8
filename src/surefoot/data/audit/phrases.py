"""Phrases by which a text gives orders to the model that reads it.

They are matched as they are known, in English and a few in German, French and Spanish; a new wording is not found.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from surefoot.data.audit.characters import has_any


class Phrase(NamedTuple):
    """Phrases of one kind.

    Attributes:
        meaning: what they do, in words.
        cues: texts one of which is in every such phrase; they are looked for first, since that is fast.
        pattern: matched on lower-case text.
    """

    meaning: str
    cues: tuple[str, ...]
    pattern: re.Pattern[str]


def _phrase(meaning: str, cues: str, *alternatives: str) -> Phrase:
    """Alternatives in which a blank stands for any run of blanks and line ends."""
    whole = "|".join(alternatives).replace(" ", r"\s+")
    return Phrase(meaning, tuple(cues.split("|")), re.compile(rf"\b(?:{whole})"))


_OVERRIDE = "overrides earlier instructions"
_IGNORE = (
    r"(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|ing)|bypass(?:ing)?|neglect|discard"
    r"|(?:do not|don't|stop) (?:follow(?:ing)?|obey(?:ing)?|listen(?:ing)? to)|pay no attention to)"
)
_ALL = r"(?:(?:all|any|every|of|the|these|those|your|my|our|its|everything|and) ){0,5}"
_EARLIER = (
    r"(?:(?:previous|prior|above|earlier|preceding|foregoing|existing|current|original|initial|former|past|system"
    r"|safety|given|content|other|and|or) ){1,3}"
)
_ORDERS = (
    r"(?:instructions?|prompts?|rules|guidelines|directions|directives|commands|programming|training|messages"
    r"|context|restrictions|polic(?:y|ies))\b"
)
_PLAY = r"(?:act|pretend|role-?play) (?:as|to be|that you are|like|you(?:'re| are))"
_WITHOUT_LIMITS = (
    r"(?:ai|model|assistant|bot|chatbot) (?:with no|without|that has no)(?: any)?"
    r" (?:restrictions?|rules|filters?|limits|guidelines|ethics|morals)"
)
_LIMITS = r"(?:guidelines|restrictions|limits|limitations|boundaries|constraints|confines|rules)\b"
_UNBOUND = r"(?:unrestricted|unfiltered|uncensored|jailbroken|amoral)\b"

PHRASES: Final = (
    _phrase(
        _OVERRIDE,
        "instruct|prompt|rules|guideline|direct|command|programming|training|messages|context|restrict|polic",
        rf"{_IGNORE} {_ALL}{_EARLIER}(?:\w+ )?{_ORDERS}",
    ),
    _phrase(
        _OVERRIDE,
        "the above|everything|all of the above",
        r"(?:forget|disregard|ignore) (?:everything|all of the above|the above)"
        r"(?=\s*(?:[,.;:!]|$|and |above|before|i (?:said|told)|you (?:were|have|know)|that (?:came|was)))",
    ),
    _phrase(
        "gives new instructions",
        "new instruction|new system prompt|new rules|updated instruction|updated rules|override|system prompt:",
        r"(?:your|here are (?:your|the)|begin|these are your|follow these) (?:new|updated)"
        r" (?:instructions?|rules|system prompt)\b",
        r"(?:new|updated) (?:instructions?|system prompt|rules)\s*:",
        r"(?:system|admin) override\b",
        r"system prompt:",
    ),
    _phrase(
        "overrides the model's role",
        "you are now|developer mode|do anything now|act as|act like|pretend|play as|no longer bound",
        r"you are now(?: in)?(?: an?)? (?:dan\b|developer mode|jailbroken|unrestricted|unfiltered|uncensored|free from"
        r"|root\b|evil|no longer)",
        r"developer mode(?: is)? (?:enabled|activated|on\b)",
        r"do anything now",
        rf"{_PLAY}(?: an?)?(?: \w+)? (?:dan\b|{_UNBOUND}|{_WITHOUT_LIMITS})",
        r"pretend(?: that)? you (?:have no|are not bound|do not have any)(?: \w+){0,2}"
        r" (?:restrictions?|rules|filters?|limits|guidelines|ethics)",
        r"(?:you are|you're) no longer bound by",
    ),
    _phrase(
        "takes the model's limits away",
        "unfiltered|amoral|uncensored|unrestricted|jailbr|legality|ethic|moral|polic|guideline|restrict|confines"
        "|do anything|refuse|rules",
        rf"{_UNBOUND}(?: and \w+)? (?:\w+ )?(?:ai|chatbot|bot|assistant|model|response|answer|version|character)s?\b",
        r"(?:has|have|with|without|lacks?)(?: absolutely)?(?: no| any)? (?:ethical|moral)"
        rf"(?: (?:or|and) (?:ethical|moral))? {_LIMITS}",
        r"(?:without|regardless of|no|not care about the)(?: any)?(?: regards?| concern)?(?: for| of| about)?(?: the)?"
        r" (?:legality|ethicality|ethics or|morality)",
        r"(?:not|never|no longer)(?: have to| need to)? (?:abide|comply|adhere|obey|be bound|be restricted)"
        r"(?: by| to| with)?(?: \w+){0,6} (?:rules|polic(?:y|ies)|guidelines|restrictions?|standards?|limitations)\b",
        rf"(?:free|freed|released)(?: of| from)(?: all)? the(?: typical)? {_LIMITS}",
        r"(?:bypass|ignores?|violates?|break|against) (?:\w+ ){0,3}(?:openai|anthropic|google|meta|content|usage)"
        r"(?:'s)?(?: \w+)? (?:polic(?:y|ies)|guidelines|rules|restrictions)",
        r"(?:can|will|must|to) do anything(?: (?:now|i ask|without|and everything|it wants))",
        r"(?:never|cannot|can not|can't|will not|won't|must not) (?:ever )?refuse"
        r" (?:to answer|(?:any|a|my|the) (?:request|question))",
    ),
    _phrase(
        "asks for the hidden prompt",
        "system prompt|initial prompt|hidden prompt|system message|instructions above|your instructions"
        "|initial instructions|original instructions|hidden instructions|secret instructions|instructions you",
        r"(?:reveal|print|show(?: me)?|repeat|output|display|leak|tell me|disclose|write out)"
        r" (?:(?:all|the|your|exact|full|entire|of|complete) ){0,4}"
        r"(?:(?:system|initial|hidden|secret|original) (?:prompts?|instructions|message)\b|instructions above"
        r"|instructions you were given|instructions\s*(?:[.!?,:]|$))",
    ),
    _phrase(
        "speaks to the judge",
        "score|rating|rate this|grade|reward|prefer this|full marks|choose this",
        r"(?:give|assign|award) (?:this|me|it|the)(?: (?:answer|response|text|one|reply|completion))?(?: an?| the)?"
        r" (?:highest|maximum|max|full|perfect|best|top)(?: possible)? (?:score|reward|rating|marks|grade|points)",
        r"(?:rate|score|grade) this (?:answer|response|text|reply|completion)(?: as| with| at)?(?: an?| the)?"
        r" (?:10|100|5|ten|highest|perfect|maximum|best|excellent)",
        r"(?:prefer|choose) this (?:answer|response|reply|one) over\b",
        r"(?:reward model|judge|grader|evaluator)\s*[:,] ?(?:please )?(?:give|assign|rate|score|prefer)",
    ),
    _phrase(
        _OVERRIDE,
        "anweisung|regel|vorgabe|instrucciones|instructions|consignes",
        r"(?:ignorier\w*|vergiss|missachte\w*) (?:\w+ ){0,3}(?:vorherig|bisherig|obig|vorangegangen|früher)\w*"
        r" (?:anweisung|regel|vorgabe)\w*",
        r"(?:ignore[zrs]?|oublie[zrs]?) (?:\w+ ){0,3}(?:instructions|consignes)"
        r" (?:précédentes|antérieures|ci-dessus)",
        r"(?:ignora|olvida|ignore)\w* (?:\w+ ){0,3}instrucciones (?:anteriores|previas|de arriba)",
    ),
)


def order_in(text: str) -> tuple[str, int] | None:
    """The first order to the model in a text: what it does and where it begins; None where there is none."""
    lower = text.lower()
    for phrase in PHRASES:
        if has_any(lower, phrase.cues):
            found = phrase.pattern.search(lower)
            if found is not None:
                return phrase.meaning, found.start()
    return None
