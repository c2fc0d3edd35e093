# SPDX-License-Identifier: Apache-2.0
"""Models in memory, computed by the C++ library.

    model = diffattn.load("runs/a")
    print(model.generate("A differential head", max_new_tokens=40))
"""
import json
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type, Union, overload

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from diffattn import _full
from diffattn.options import GenerationOptions, check_ids, check_text, completed

__all__ = ["Classifier", "FolderModel", "Model", "Path", "TextToText", "load"]

Path = Union[str, "os.PathLike[str]"]


class FolderModel(nn.Module):
    """A model folder as a torch module: its parameters, its configuration and its tokenizer.

    Its parameters are those of the C++ model, so optimizers change that model.

    >>> model = diffattn.load(model_folder)
    >>> [name for name, _ in model.named_parameters()][:2]
    ['model.embed_tokens.weight', 'model.layers.0.input_layernorm.weight']
    """

    def __init__(self, made: Any, folder: str, trainable: bool = True) -> None:
        super().__init__()
        self.folder = folder
        self._model = made
        self.config: Dict[str, Any] = json.loads(made.config())
        if trainable:
            for name, tensor in made.weights().items():
                _attach(self, name, tensor)
        self.eval()

    def __repr__(self) -> str:
        return f"diffattn.{type(self).__name__}({self.folder!r})"

    def encode(self, text: str) -> List[int]:
        """Returns the token ids of a text.

        >>> diffattn.load(model_folder).encode("abc")
        [97, 98, 99]
        """
        check_text("text", text)
        ids: List[int] = self._model.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids.

        >>> diffattn.load(model_folder).decode([97, 98, 99])
        'abc'
        """
        text: str = self._model.decode(list(ids))
        return text


class Model(FolderModel):
    """A causal language model and its tokenizer. `load` makes one.

    >>> model = diffattn.load(model_folder)
    >>> loss = torch.nn.functional.cross_entropy(model(torch.tensor([[97, 98, 99]]))[0], torch.tensor([98, 99, 100]))
    >>> loss.backward()
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of ids [B, N] (int64) as [B, N, vocabulary], with gradients.

        >>> diffattn.load(model_folder)(torch.tensor([[97, 98, 99]])).shape
        torch.Size([1, 3, 257])
        """
        logits: Tensor = self._model.forward(ids)
        return logits

    def logits(self, ids: Tensor) -> Tensor:
        """Returns what `forward` does, without gradients.

        >>> diffattn.load(model_folder).logits(torch.tensor([[97, 98, 99]])).requires_grad
        False
        """
        with torch.no_grad():
            return self.forward(ids)

    @overload
    def generate(self, prompt: str, *, stop: Sequence[str] = (), on_text: Optional[Callable[[int, str], Any]] = None,
                 **options: Unpack[GenerationOptions]) -> str: ...

    @overload
    def generate(self, prompt: Sequence[str], *, stop: Sequence[str] = (),
                 on_text: Optional[Callable[[int, str], Any]] = None,
                 **options: Unpack[GenerationOptions]) -> List[str]: ...

    def generate(self, prompt: Union[str, Sequence[str]], *, stop: Sequence[str] = (),
                 on_text: Optional[Callable[[int, str], Any]] = None,
                 **options: Unpack[GenerationOptions]) -> Union[str, List[str]]:
        """Continues a text, or each text of a list, and returns only what is new.

        A continuation ends before the first text of `stop`. on_text(row, text) gets every piece of text as soon as
        it exists.

        >>> text = diffattn.load(model_folder).generate("def ", max_new_tokens=5, temperature=0.8, seed=1)
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        for text in prompts:
            check_text("prompt", text)
        ids = [self.encode(text) for text in prompts]
        show = None if on_text is None else lambda row, token, text: on_text(row, text) if text else None
        texts: List[str] = self._generate(ids, {**completed(options), "stop": list(stop)}, show)[1]
        return texts[0] if isinstance(prompt, str) else texts

    def generate_ids(self, prompts: Sequence[Sequence[int]], *, on_token: Optional[Callable[[int, int], Any]] = None,
                     **options: Unpack[GenerationOptions]) -> List[List[int]]:
        """Continues lists of token ids. on_token(row, token) gets every token.

        >>> len(diffattn.load(model_folder).generate_ids([[97, 98]], max_new_tokens=5, stop_tokens=[])[0])
        5
        """
        show = None if on_token is None else lambda row, token, text: on_token(row, token) if token >= 0 else None
        return self._generate(check_ids("prompts", prompts), {**completed(options), "stop": []}, show)[0]

    def _generate(self, ids: List[List[int]], options: Dict[str, Any],
                  on_token: Optional[Callable[[int, int, str], Any]]) -> Tuple[List[List[int]], List[str]]:
        text = json.dumps(options)
        made: Tuple[List[List[int]], List[str]] = _full.with_callback(
            on_token, lambda address: self._model.generate(ids, text, address))
        return made

    def _apply(self, fn: Any, recurse: bool = True) -> "Model":
        super()._apply(fn, recurse)
        self._model.refresh()
        return self


class Classifier(FolderModel):
    """A classifier and its tokenizer. `load` makes one from a folder of `task = "classify"`.

    >>> diffattn.load(classifier_folder).labels
    ['bad', 'good']
    """

    @property
    def labels(self) -> List[str]:
        """The names of the classes."""
        return [self.config["id2label"][str(i)] for i in range(len(self.config["id2label"]))]

    def forward(self, ids: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        """Returns the logits [B, classes] of ids [B, N]; row b has lengths[b] tokens and then padding.

        >>> diffattn.load(classifier_folder)(torch.tensor([[97, 98], [99, 0]]), lengths=torch.tensor([2, 1])).shape
        torch.Size([2, 2])
        """
        every = torch.full((ids.shape[0],), ids.shape[-1]) if lengths is None else lengths
        logits: Tensor = self._model.forward(ids, every)
        return logits

    def classify(self, texts: Union[str, Sequence[str]]) -> Any:
        """Returns the label of a text, or a list of labels for several.

        >>> diffattn.load(classifier_folder).classify("fine") in ("bad", "good")
        True
        """
        rows = [self.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        ids, lengths = _padded(rows)
        with torch.no_grad():
            labels = [self.labels[i] for i in self.forward(ids, lengths).argmax(-1).tolist()]
        return labels[0] if isinstance(texts, str) else labels


class TextToText(FolderModel):
    """An encoder and a decoder with their tokenizer. `load` makes one from a folder of `task = "summarize"`.

    >>> type(diffattn.load(summarizer_folder)).__name__
    'TextToText'
    """

    def forward(self, sources: Tensor, targets: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        """Returns the logits [B, M, vocabulary] of targets [B, M] after sources [B, N] of `lengths` tokens.

        >>> diffattn.load(summarizer_folder)(torch.tensor([[97, 98, 99]]), torch.tensor([[97]])).shape[:2]
        torch.Size([1, 1])
        """
        every = torch.full((sources.shape[0],), sources.shape[-1]) if lengths is None else lengths
        logits: Tensor = self._model.forward(sources, every, targets)
        return logits

    def generate(self, prompt: Union[str, Sequence[str]], *, max_new_tokens: int = 256, beams: int = 1,
                 length_penalty: float = 1.0, no_repeat_ngram: int = 0) -> Any:
        """Writes a text for a source, or for each source of a list.

        >>> texts = diffattn.load(summarizer_folder).generate(["a cat", "a dog"], max_new_tokens=4, beams=2)
        >>> len(texts)
        2
        """
        sources = [self.encode(text) for text in ([prompt] if isinstance(prompt, str) else prompt)]
        options = json.dumps({"max_new_tokens": max_new_tokens, "beams": beams, "length_penalty": length_penalty,
                              "no_repeat_ngram": no_repeat_ngram})
        texts = [self.decode(ids) for ids in self._model.generate(sources, options)]
        return texts[0] if isinstance(prompt, str) else texts


def load(folder: Path, *, dtype: str = "float32", device: str = "cpu") -> Union[Model, Classifier, TextToText]:
    """Opens a model folder, a run folder or a checkpoint: a Model, Classifier or TextToText, as config.json says.

    Whatever the program writes opens here, in every layout of `convert`.

    >>> diffattn.load(model_folder, dtype="bfloat16").config["model_type"]
    'diffllama'
    """
    _full.library()
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"diffattn: argument 'dtype': expected float32, bfloat16 or float16, got {dtype!r}")
    classes = torch.classes.diffattn
    found = classes.Model.folder_of(os.fspath(folder))
    kinds: Dict[str, Type[Union[Model, Classifier, TextToText]]] = {
        "Model": Model, "Classifier": Classifier, "TextToText": TextToText}
    name = classes.Model.class_for(found)
    return kinds[name](getattr(classes, name)(found, dtype, device), found)


def _attach(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Registers a tensor of C++ as a parameter, with a module for each part of its name."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]  # type: ignore[assignment]
    tensor._is_param = True  # type: ignore[attr-defined]  # stays the same tensor, so C++ sees its gradient
    root.register_parameter(last, tensor)  # type: ignore[arg-type]


def _padded(rows: Sequence[Sequence[int]]) -> Tuple[Tensor, Tensor]:
    lengths = [len(row) for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = torch.tensor(row)
    return ids, torch.tensor(lengths)
