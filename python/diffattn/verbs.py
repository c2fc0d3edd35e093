# SPDX-License-Identifier: Apache-2.0
"""Training and analysis: verbs of the program as functions of this process.

docs/program.md describes the options. Wrong options raise ValueError; other failures raise RuntimeError, with the
text that the program prints. Ctrl-C stops a call; a training first saves a checkpoint.
"""
import os
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Union

from diffattn_program import verbs

from diffattn import _full
from diffattn.model import Model, Path


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
          resume: Optional[Path] = None, settings: Optional[Mapping[str, Any]] = None, skip_bad: bool = False,
          dry_run: bool = False) -> Dict[str, Any]:
    """Trains a model from a run file or a dictionary with its keys into the folder `out`.

    `settings` override keys: {"train.steps": 500}. `resume` continues a run folder. Returns the outcome: step, tokens,
    loss, valid_loss, and the folder of the model. Ctrl-C saves a checkpoint before it raises KeyboardInterrupt.
    """
    overrides = list(_settings(config)) if isinstance(config, Mapping) else []
    overrides += list(_settings(settings or {}))
    words = verbs.command_words(config=None if isinstance(config, Mapping) else config, out=out, resume=resume,
                                set=overrides, skip_bad=skip_bad, dry_run=dry_run)
    return verbs.result_of(_full.library(), "train", words, stopped=_continue_with)


def analyze(model: Union[Path, Model], *, text: Optional[str] = None, prompt_ids: Optional[Sequence[int]] = None,
            task: Optional[str] = None, data: Optional[Path] = None, compare: Sequence[Path] = (),
            out: Optional[Path] = None, png: Optional[Path] = None, svg: Optional[Path] = None,
            csv: Optional[Path] = None, layer: Optional[int] = None, head: Optional[int] = None,
            dtype: str = "float32", device: str = "cpu") -> Dict[str, Any]:
    """Measures the attention of a model on a text, on token ids, or on a generated task.

    Returns statistics and lambda of every head; with `layer` and `head` also the maps of that head. `out` names an
    HTML page to write; `png`, `svg` and `csv` name pictures and a table.
    """
    folder = model.folder if isinstance(model, Model) else model
    ids = None if prompt_ids is None else ",".join(str(int(one)) for one in prompt_ids)
    return verbs.result_of(_full.library(), "analyze", verbs.command_words(
        model=os.fspath(folder), text=text, prompt_ids=ids, task=task, data=data, compare=list(compare), out=out,
        png=png, svg=svg, csv=csv, layer=layer, head=head, dtype=dtype, device=device))
