# SPDX-License-Identifier: Apache-2.0
"""Converts model folders between layouts with the program `diffattn convert`.

    report = diffattn.convert.convert("IN", "OUT", to="diffllama")

docs/convert.md describes the layouts and what happens to each tensor.
"""
import json
import os
import subprocess
from typing import Any, Dict, Mapping, Optional, Union

from diffattn import _library

Path = Union[str, "os.PathLike[str]"]


class ConversionError(RuntimeError):
    """A failed conversion. The message of the program names the file, what it expected and what it got."""


def convert(source: Path, target: Path, *, to: str, source_format: Optional[str] = None,
            gqa: str = "paired", attention_only: bool = False,
            rename: Optional[Mapping[str, str]] = None, max_shard_mib: Optional[int] = None,
            seed: Optional[int] = None, follow_links: bool = False, force: bool = False,
            dry_run: bool = False) -> Dict[str, Any]:
    """Converts the model folder `source` to the model folder `target` in layout `to`.

    Returns a report with every tensor. The target appears when it is complete or not at all. The arguments
    are those of `diffattn convert`; `source_format` is its `--from`. Raises ConversionError with the
    message of the program.
    """
    program = _library.program()
    if program is None:
        raise ConversionError(_library.NO_PROGRAM)
    arguments = ["--to", to, "--gqa", gqa]
    if seed is not None:
        arguments += ["--seed", str(seed)]
    if source_format is not None:
        arguments += ["--from", source_format]
    if max_shard_mib is not None:
        arguments += ["--max-shard-mib", str(max_shard_mib)]
    for old, new in (rename or {}).items():
        arguments += ["--rename", f"{old}={new}"]
    for flag, given in {"--attention-only": attention_only, "--follow-links": follow_links,
                        "--force": force, "--dry-run": dry_run}.items():
        arguments += [flag] if given else []
    result = subprocess.run([str(program), "convert", *arguments, "--json", "--", os.fspath(source),
                             os.fspath(target)], capture_output=True, text=True, check=False,
                            env=_library.environment(program))
    if result.returncode != 0:
        raise ConversionError(result.stderr.strip() or f"diffattn convert: exit {result.returncode}")
    return json.loads(result.stdout)
