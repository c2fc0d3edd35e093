# SPDX-License-Identifier: Apache-2.0
"""Converts model folders between layouts.

    report = diffattn.convert("IN", "OUT", to="diffllama")

docs/convert.md describes the layouts and what happens to each tensor.
"""
import os
import warnings
from typing import Any, Dict, Mapping, Optional

from diffattn import _full
from diffattn.model import Path
from diffattn.verbs import command_words


class ConversionError(RuntimeError):
    """A failed conversion. The message names the file, what was expected and what came."""


def convert(source: Path, target: Path, *, to: str, source_format: Optional[str] = None, gqa: str = "paired",
            attention_only: bool = False, rename: Optional[Mapping[str, str]] = None,
            max_shard_mib: Optional[int] = None, seed: Optional[int] = None, follow_links: bool = False,
            force: bool = False, dry_run: bool = False) -> Dict[str, Any]:
    """Converts the model folder `source` to the model folder `target` in layout `to`.

    Returns a report with every tensor. The target appears when it is complete or not at all. The arguments
    are those of `diffattn convert`; `source_format` is its `--from`. Raises ConversionError.
    """
    words = command_words(to=to, from_=source_format, gqa=gqa, attention_only=attention_only,
                          rename=[f"{old}={new}" for old, new in (rename or {}).items()],
                          max_shard_mib=max_shard_mib,
                          seed=seed, follow_links=follow_links, force=force, dry_run=dry_run)
    return _full.run_verb("convert", [*words, "--", os.fspath(source), os.fspath(target)], ConversionError)


def _old_name(*arguments: Any, **options: Any) -> Dict[str, Any]:
    warnings.warn("diffattn.convert.convert is deprecated: call diffattn.convert", DeprecationWarning, stacklevel=2)
    return convert(*arguments, **options)


# `diffattn.convert` was a module. Its names keep working on the function.
setattr(convert, "convert", _old_name)  # noqa: B010
setattr(convert, "ConversionError", ConversionError)  # noqa: B010
