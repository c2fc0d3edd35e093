# SPDX-License-Identifier: Apache-2.0
"""Converts model folders between layouts. Does not need torch.

    from diffattn_program.convert import convert
    report = convert("IN", "OUT", to="diffllama")

`diffattn.convert` is the same function. docs/convert.md describes the layouts and what happens to each tensor.
"""
import ctypes
import functools
import os
import sys
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import diffattn_program
from diffattn_program import terminal, verbs

__all__ = ["ConversionError", "convert"]

Path = Union[str, "os.PathLike[str]"]


class ConversionError(RuntimeError):
    """A failed conversion. The message names the file, what was expected and what came."""


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    path = diffattn_program.converter()
    if not path.is_file():
        raise ConversionError(diffattn_program.NO_PROGRAM)
    return verbs.open_library(path)


def convert(source: Path, target: Path, *, to: str, source_format: Optional[str] = None, gqa: str = "paired",
            attention_only: bool = False, rename: Optional[Mapping[str, str]] = None,
            max_shard_mib: Optional[int] = None, seed: Optional[int] = None, follow_links: bool = False,
            force: bool = False, dry_run: bool = False) -> Dict[str, Any]:
    """Converts the model folder `source` to the model folder `target` in layout `to`.

    Returns a report with every tensor. The target appears when it is complete or not at all. The arguments
    are those of `diffattn convert`; `source_format` is its `--from`. Raises ConversionError.

    >>> report = diffattn.convert(model_folder, "unused", to="microsoft", dry_run=True)
    >>> report["from"], report["to"]
    ('diffllama', 'microsoft')
    """
    words = verbs.command_words(to=to, from_=source_format, gqa=gqa, attention_only=attention_only,
                                rename=[f"{old}={new}" for old, new in (rename or {}).items()],
                                max_shard_mib=max_shard_mib, seed=seed, follow_links=follow_links, force=force,
                                dry_run=dry_run)
    report: Dict[str, Any] = verbs.result_of(
        _library(), "convert", [*words, "--", os.fspath(source), os.fspath(target)], ConversionError)
    return report


def main(arguments: Sequence[str]) -> int:
    """Runs the command `diffattn convert` without the program and returns its exit code."""
    signals = verbs.Signals()
    code, text = verbs.run(_library(), "convert", arguments, signals)
    if code in verbs.EXIT_CODES:
        terminal.write(verbs.message_of(text) + "\n")
        if code == verbs.WRONG_USE:
            terminal.write("Run 'diffattn convert --help' for its options.\n")
        return verbs.EXIT_CODES[code]
    terminal.write(text, sys.stdout)
    return code
