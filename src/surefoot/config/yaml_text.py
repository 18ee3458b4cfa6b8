"""YAML as users mean it: ``off`` and ``2024-01-01`` are words, ``1e-6`` is a number, and a key that stands twice is a
fault. Torch-free.

PyYAML follows YAML 1.1, in which on, off, yes and no are booleans, dates are dates and ``1e-6`` is a text. What JSON
does not have (bytes, sets, keys that are no texts) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

_BOOL: Final = "tag:yaml.org,2002:bool"
_FLOAT: Final = "tag:yaml.org,2002:float"
_DATE: Final = "tag:yaml.org,2002:timestamp"
_NOT_JSON: Final = {
    _DATE: "a date",
    **{f"tag:yaml.org,2002:{kind}": kind for kind in ("binary", "set", "omap", "pairs")},
}
_MOST_VALUES: Final = 100_000
_LARGEST: Final = 2**63 - 1
_WITH_EXPONENT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
_NUMBER_STARTS: Final = list("-+.0123456789")


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2's booleans and numbers; refuses a key that stands twice, of which one value would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _fault(f"{key.value!r} stands twice", key)
                seen.add(key.value)
                if key.tag != "tag:yaml.org,2002:str":
                    raise _fault(f"the key {key.value!r} is no text: put it in quotes", key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NOT_JSON:
            raise _fault(f"a value of the kind {_NOT_JSON[node.tag]!r} cannot be used here", node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, OverflowError) as error:
            raise _fault(f"not the value that its tag or form says ({error})", node) from error


def _fault(what: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that either version of YAML would read as something else."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _DATE)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_FLOAT, _WITH_EXPONENT, _NUMBER_STARTS)
_Dumper.add_implicit_resolver(_FLOAT, _WITH_EXPONENT, _NUMBER_STARTS)


def read_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is none, a key stands twice in one section, or it holds what JSON does not have.
    """
    try:
        tree = yaml.load(text, Loader=_Loader)
        _check(tree, [_MOST_VALUES], ())
    except RecursionError:
        raise yaml.YAMLError("nested too deeply, or within itself") from None
    return tree


def _check(value: Any, left: list[int], place: tuple[str, ...]) -> None:
    """Half characters cannot be written to any file; a few anchors within each other can make millions of values."""
    left[0] -= 1
    if left[0] < 0:
        raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values, aliases included")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise yaml.YAMLError(f"a whole number of {len(str(abs(value)))} digits in {'.'.join(place) or 'the text'}")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise yaml.YAMLError(f"half a character (a surrogate) in {'.'.join(place) or 'the text'}")
    if isinstance(value, dict):
        for key, item in value.items():
            _check(key, left, place)
            _check(item, left, (*place, key))
    elif isinstance(value, list):
        for n, item in enumerate(value):
            _check(item, left, (*place, str(n)))


def write_yaml(tree: Any) -> str:
    """A tree as YAML, in its own order, which readers of either version read back as the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
