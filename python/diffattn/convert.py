# SPDX-License-Identifier: Apache-2.0
"""Model folders from one layout to another, by the program's `convert`.

    report = diffattn.convert.convert("IN", "OUT", to="diffllama")

docs/convert.md says which layouts there are and what becomes of each tensor.
"""
import json
import os
import subprocess
from typing import Any, Dict, Mapping, Optional, Union

from diffattn import _library

Path = Union[str, "os.PathLike[str]"]


class ConversionError(RuntimeError):
    """What the program said: the file, what was expected and what came."""


def convert(source: Path, target: Path, *, to: str, source_format: Optional[str] = None,
            gqa: str = "paired", attention_only: bool = False,
            rename: Optional[Mapping[str, str]] = None, max_shard_mib: Optional[int] = None,
            seed: Optional[int] = None, follow_links: bool = False, force: bool = False,
            dry_run: bool = False) -> Dict[str, Any]:
    """Reads the model folder `source`, writes the model folder `target` in layout `to`, complete or
    not at all, and returns the report of every tensor. Arguments are those of `diffattn convert`;
    `source_format` is its `--from`. Raises ConversionError with the program's sentence."""
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
