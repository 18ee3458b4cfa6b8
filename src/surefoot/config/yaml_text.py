"""YAML as users mean it: ``off`` is a word, ``1e-6`` is a number, and a key that stands twice is a fault. Torch-free.

PyYAML follows YAML 1.1, in which on, off, yes and no are booleans and ``1e-6`` is a text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

_BOOL: Final = "tag:yaml.org,2002:bool"
_FLOAT: Final = "tag:yaml.org,2002:float"
_WITH_EXPONENT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
_NUMBER_STARTS: Final = list("-+.0123456789")


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2's booleans and numbers; refuses a key that stands twice, of which one value would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that either version of YAML would read as something else."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_FLOAT, _WITH_EXPONENT, _NUMBER_STARTS)
_Dumper.add_implicit_resolver(_FLOAT, _WITH_EXPONENT, _NUMBER_STARTS)


def read_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is none, or a key stands twice in one section.
    """
    return yaml.load(text, Loader=_Loader)


def write_yaml(tree: Any) -> str:
    """A tree as YAML, in its own order, which readers of either version read back as the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
