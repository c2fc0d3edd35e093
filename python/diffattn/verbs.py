# SPDX-License-Identifier: Apache-2.0
"""Training: a verb of the program as a function of this process.

docs/program.md describes the options. Wrong options raise ValueError; other failures raise RuntimeError, with the
text that the program prints. Ctrl-C stops a call; a training first saves a checkpoint.
"""
from typing import Any, Dict, Iterable, Mapping, Optional, Union

from diffattn_program import verbs

from diffattn import _full
from diffattn.model import Path

__all__ = ["train"]


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(table: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Yields `key=value` for every setting: {"train": {"steps": 5}} gives "train.steps=5"."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_value_text(value)}"


def _continue_with(result: Dict[str, Any]) -> str:
    if result.get("outcome") != "stopped":
        return ""
    return f"stopped at step {result['step']}; continue with diffattn.train(resume={result['folder']!r})"


def train(config: Union[Path, Mapping[str, Any], None] = None, out: Optional[Path] = None, *,
          resume: Optional[Path] = None, from_checkpoint: Optional[str] = None, change_batch_size: bool = False,
          settings: Optional[Mapping[str, Any]] = None, skip_bad: bool = False, dry_run: bool = False
          ) -> Dict[str, Any]:
    """Trains a model from a run file or a dictionary with its keys into the folder `out`.

    `settings` override keys: {"train.steps": 500}. `resume` continues a run folder: from its newest checkpoint, or from
    `from_checkpoint`, "step-400" (`--from` in messages), and with `change_batch_size` with another number of rows for
    each update. Returns the outcome: step, tokens, loss, valid_loss, and the folder of the model. Ctrl-C saves a
    checkpoint before it raises KeyboardInterrupt.

    >>> plan = diffattn.train({"task": "needle", "train": {"steps": 3}}, dry_run=True)
    >>> plan["steps"]
    3
    """
    overrides = list(_settings(config)) if isinstance(config, Mapping) else []
    overrides += list(_settings(settings or {}))
    words = verbs.command_words(config=None if isinstance(config, Mapping) else config, out=out, resume=resume,
                                from_=from_checkpoint, change_batch_size=change_batch_size, set=overrides,
                                skip_bad=skip_bad, dry_run=dry_run)
    result: Dict[str, Any] = verbs.result_of(_full.library(), "train", words, stopped=_continue_with)
    return result
