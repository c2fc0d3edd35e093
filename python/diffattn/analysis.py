# SPDX-License-Identifier: Apache-2.0
"""Analysis of a model's attention: statistics, and a page that a notebook shows.

docs/analysis.md explains the statistics, docs/program.md the options.
"""
import html
import os
import pathlib
import tempfile
from typing import Any, Dict, List, Optional, Sequence, Union

import torch
from diffattn_program import verbs

from diffattn import _full
from diffattn.model import FolderModel, Path

__all__ = ["Analysis", "analyze"]


class Analysis(Dict[str, Any]):
    """The result of `analyze`: a dictionary with the keys of `diffattn analyze --json`.

    A notebook shows the page, with all maps. `page` is its HTML.

    >>> diffattn.analyze(diffattn.load(model_folder), text="import json").page[:15]
    '<!doctype html>'
    """

    def __init__(self, result: Dict[str, Any], page: str) -> None:
        super().__init__(result)
        self.page = page

    @property
    def statistics(self) -> List[Dict[str, Any]]:
        """The statistics of every head of the first model, with `layer` and `head`.

        >>> analysis = diffattn.analyze(diffattn.load(model_folder), text="import json")
        >>> analysis.statistics[3]["layer"], analysis.statistics[3]["head"]
        (1, 1)
        """
        rows: List[Dict[str, Any]] = self["models"][0]["statistics"]
        return rows

    def save(self, path: Path) -> None:
        """Writes the page, one HTML file that needs nothing else.

        >>> diffattn.analyze(diffattn.load(model_folder), text="import json").save(scratch / "page.html")
        """
        pathlib.Path(path).write_text(self.page, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Shows the page in a frame of its own, so that its styles and scripts stay inside."""
        return ('<iframe style="width: 100%; height: 720px; border: 0" sandbox="allow-scripts" '
                f'srcdoc="{html.escape(self.page, quote=True)}"></iframe>')


def analyze(model: Union[Path, FolderModel, torch.nn.Module], tokenizer: Any = None, text: Optional[str] = None, *,
            prompt_ids: Optional[Sequence[int]] = None, task: Optional[str] = None, data: Optional[Path] = None,
            compare: Sequence[Path] = (), out: Optional[Path] = None, png: Optional[Path] = None,
            svg: Optional[Path] = None, csv: Optional[Path] = None, layer: Optional[int] = None,
            head: Optional[int] = None, dtype: str = "float32", device: str = "cpu") -> Analysis:
    """Measures the attention of a model on a text, on token ids, or on a generated task.

    model: a model folder, what `load` returns, or a DiffLlama or Llama of transformers, with its `tokenizer` if there
    is a text. Returns statistics and lambda of every head; with `layer` and `head` also the maps of that head. A
    notebook shows the page. `out` names an HTML page to write; `png`, `svg` and `csv` name pictures and a table.

    >>> analysis = diffattn.analyze(diffattn.load(model_folder), text="import json")
    >>> len(analysis.statistics)                              # 2 layers of 2 heads
    4
    """
    if tokenizer is not None and not isinstance(model, torch.nn.Module):
        raise TypeError("diffattn: argument 'tokenizer': expected None for a folder, which has its own, got "
                        f"{type(tokenizer).__name__}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source = _folder_of(model, tokenizer, folder / "model")
        if text is not None and tokenizer is not None:
            prompt_ids, text = list(tokenizer(text)["input_ids"]), None
        page = pathlib.Path(out) if out is not None else folder / "page.html"
        ids = None if prompt_ids is None else ",".join(str(int(one)) for one in prompt_ids)
        result = verbs.result_of(_full.library(), "analyze", verbs.command_words(
            model=source, text=text, prompt_ids=ids, task=task, data=data, compare=list(compare), out=page,
            png=png, svg=svg, csv=csv, layer=layer, head=head, dtype=dtype, device=device))
        return Analysis(result, page.read_text(encoding="utf-8"))


def _folder_of(model: Union[Path, FolderModel, torch.nn.Module], tokenizer: Any, folder: pathlib.Path) -> str:
    """Returns the folder of a model. Writes a model of transformers to `folder`."""
    if isinstance(model, FolderModel):
        return model.folder
    if not isinstance(model, torch.nn.Module):
        return os.fspath(model)
    if not hasattr(model, "save_pretrained"):
        raise TypeError("diffattn: argument 'model': expected a folder, a model of diffattn.load or one of "
                        f"transformers, got {type(model).__name__}")
    model.save_pretrained(folder)
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    return str(folder)
