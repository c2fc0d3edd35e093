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

#: The options of generation with their defaults. `stop_tokens` (default: the model's end of text) is one more.
OPTIONS: Dict[str, Any] = {"max_new_tokens": 64, "temperature": 0.0, "top_k": 0, "top_p": 1.0,
                           "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 0}


class Model:
    """A causal language model and its tokenizer. `load` makes one."""

    def __init__(self, folder: Path, dtype: str = "float32", device: str = "cpu") -> None:
        _full.library()
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"diffattn: argument 'dtype': expected float32, bfloat16 or float16, got {dtype!r}")
        self.folder = os.fspath(folder)
        self._model = torch.classes.diffattn.Model(self.folder, dtype, device)
        self.config: Dict[str, Any] = json.loads(self._model.config())

    @classmethod
    def of(cls, made: Any, name: str) -> "Model":
        """Wraps a torch.classes.diffattn.Model."""
        model = cls.__new__(cls)
        model.folder, model._model, model.config = name, made, json.loads(made.config())
        return model

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

    def generate(self, prompt: Union[str, Sequence[str]], *, stop: Sequence[str] = (),
                 on_text: Optional[Callable[[int, str], Any]] = None, **options: Any) -> Union[str, List[str]]:
        """Continues a text, or each text of a list, and returns only what is new.

        The options are those of OPTIONS. temperature 0 takes the likeliest token. A continuation ends before the
        first text of `stop`. on_text(row, text) gets every piece of text as soon as it exists.
        """
        single = isinstance(prompt, str)
        ids = [self.encode(text) for text in ([prompt] if single else prompt)]
        show = None if on_text is None else lambda row, token, text: on_text(row, text) if text else None
        _, texts = self._generate(ids, {**options, "stop": list(stop)}, show)
        return texts[0] if single else texts

    def generate_ids(self, prompts: Sequence[Sequence[int]], *,
                     on_token: Optional[Callable[[int, int], Any]] = None, **options: Any) -> List[List[int]]:
        """Continues lists of token ids. on_token(row, token) gets every token; the options are those of `generate`."""
        show = None if on_token is None else lambda row, token, text: on_token(row, token) if token >= 0 else None
        return self._generate([list(ids) for ids in prompts], {**options, "stop": []}, show)[0]

    def _generate(self, ids: List[List[int]], options: Dict[str, Any],
                  on_token: Optional[Callable[[int, int, str], Any]]) -> Any:
        wrong = sorted(set(options) - {*OPTIONS, "stop", "stop_tokens"})
        if wrong:
            raise TypeError(f"diffattn: generate has no option {wrong[0]!r}; it has {', '.join(OPTIONS)}, stop_tokens")
        text = json.dumps({**OPTIONS, **options})
        return _full.with_callback(on_token, lambda address: self._model.generate(ids, text, address))


def load(folder: Path, *, dtype: str = "float32", device: str = "cpu") -> Model:
    """Loads a model folder: config.json, weights and, if there is one, tokenizer.json."""
    return Model(folder, dtype, device)
