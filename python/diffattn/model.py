# SPDX-License-Identifier: Apache-2.0
"""Language models in memory, computed by the C++ library.

    model = diffattn.load("runs/a/model")
    print(model.generate("A differential head", max_new_tokens=40))
"""
import json
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from diffattn import _full

Path = Union[str, "os.PathLike[str]"]


class Model:
    """A causal language model and its tokenizer. `load` makes one."""

    def __init__(self, folder: Path, dtype: str = "float32", device: str = "cpu") -> None:
        _full.library()
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"diffattn: argument 'dtype': expected float32, bfloat16 or float16, got {dtype!r}")
        self.folder = os.fspath(folder)
        self._model = torch.classes.diffattn.Model(self.folder, dtype, device)
        self.config: Dict[str, Any] = json.loads(self._model.config())

    def __repr__(self) -> str:
        return f"diffattn.Model({self.folder!r})"

    def encode(self, text: str) -> List[int]:
        """Returns the token ids of a text."""
        return self._model.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids."""
        return self._model.decode(list(ids))

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logits of ids [B, N] (int64) as [B, N, vocabulary], without gradients."""
        return self._model.logits(ids)

    def generate(self, prompt: Union[str, Sequence[str]], *, max_new_tokens: int = 64, temperature: float = 0.0,
                 top_k: int = 0, top_p: float = 1.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0,
                 frequency_penalty: float = 0.0, seed: int = 0, stop: Sequence[str] = (),
                 on_text: Optional[Callable[[int, str], Any]] = None) -> Union[str, List[str]]:
        """Continues a text, or each text of a list, and returns only what is new.

        temperature 0 takes the likeliest token. A continuation ends before the first text of `stop`. on_text(row,
        text) gets every piece of text as soon as it exists.
        """
        single = isinstance(prompt, str)
        ids = [self.encode(text) for text in ([prompt] if single else prompt)]
        options = dict(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
                       repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
                       frequency_penalty=frequency_penalty, seed=seed, stop=list(stop))
        _, texts = self._generate(ids, options, on_text)
        return texts[0] if single else texts

    def generate_ids(self, prompts: Sequence[Sequence[int]], **options: Any) -> List[List[int]]:
        """Continues lists of token ids. The options are those of `generate`, without stop and on_text."""
        known = dict(max_new_tokens=64, temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0,
                     presence_penalty=0.0, frequency_penalty=0.0, seed=0)
        wrong = sorted(set(options) - set(known))
        if wrong:
            raise TypeError(f"diffattn: generate_ids has no option {wrong[0]!r}")
        return self._generate([list(ids) for ids in prompts], {**known, **options, "stop": []}, None)[0]

    def _generate(self, ids: List[List[int]], options: Dict[str, Any],
                  on_text: Optional[Callable[[int, str], Any]]) -> Any:
        return _full.with_text_callback(
            on_text, lambda address: self._model.generate(ids, json.dumps(options), address))


def load(folder: Path, *, dtype: str = "float32", device: str = "cpu") -> Model:
    """Loads a model folder: config.json, weights and, if there is one, tokenizer.json."""
    return Model(folder, dtype, device)
