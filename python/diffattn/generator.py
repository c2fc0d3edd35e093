# SPDX-License-Identifier: Apache-2.0
"""Fast generation for models of transformers and for model folders.

    generator = diffattn.Generator(model)                 # DiffLlamaForCausalLM, LlamaForCausalLM or a folder
    ids = generator.generate(tokenizer(prompts).input_ids, max_new_tokens=64)

All rows of a batch share one read of the weights, on a GPU in one CUDA graph per token. The generator reads the
model's parameters where they are: it needs no second copy, and sees changes of their values.
"""
import os
import queue
import tempfile
import threading
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from typing_extensions import Unpack

from diffattn import _full
from diffattn.model import FolderModel, Model, Path, load
from diffattn.options import GenerationOptions, check_ids, check_text

__all__ = ["Generator", "Prompts"]

Prompts = Union[str, Sequence[str], Sequence[int], Sequence[Sequence[int]], torch.Tensor]


class Generator:
    """Continues prompts, given as texts or as token ids.

    >>> generator = diffattn.Generator(model_folder)
    >>> generator.uses_steps
    True
    """

    def __init__(self, model: Union[Path, Model, torch.nn.Module], *, tokenizer: Any = None,
                 dtype: Optional[str] = None, device: Optional[str] = None) -> None:
        """Takes a model folder, a Model, or a causal language model of transformers.

        `tokenizer` is one of transformers, for prompts that are texts; a folder brings its own. dtype and device
        are for folders (default: bfloat16 on a GPU if there is one, else float32 on the CPU).
        """
        if isinstance(model, torch.nn.Module) and not isinstance(model, FolderModel):
            if dtype or device:
                raise ValueError("diffattn: arguments 'dtype' and 'device': expected none for a model in memory, "
                                 "which has its own")
            self._model = _of_module(model)
        elif isinstance(model, FolderModel):
            self._model = _causal(model)
        else:
            device = device or ("cuda" if torch.cuda.is_available() else "cpu")
            self._model = _causal(load(model, dtype=dtype or ("bfloat16" if device.startswith("cuda") else "float32"),
                                       device=device))
        self._tokenizer = tokenizer

    @property
    def uses_steps(self) -> bool:
        """True if fused steps compute the tokens; else `reason` says why not."""
        return bool(self._model._model.uses_steps())

    @property
    def reason(self) -> str:
        """Says why fused steps cannot be used; empty if they are."""
        return str(self._model._model.reason())

    def generate(self, prompts: Prompts, **options: Unpack[GenerationOptions]) -> Any:
        """Continues each prompt and returns only what is new: texts for texts, lists of ids for ids.

        One prompt gives one result, a list of prompts a list.

        >>> rows = diffattn.Generator(model_folder).generate([[97, 98], [99]], max_new_tokens=4, stop_tokens=[])
        >>> [len(row) for row in rows]
        [4, 4]
        """
        ids, single, texts = self._encoded(prompts)
        if texts and self._tokenizer is None:
            return self._model.generate(prompts, **options)  # type: ignore[arg-type]
        rows: List[Any] = self._model.generate_ids(ids, **options)
        if texts:
            rows = [self._tokenizer.decode(row, skip_special_tokens=True) for row in rows]
        return rows[0] if single else rows

    def stream(self, prompts: Prompts, **options: Unpack[GenerationOptions]) -> Iterator[Tuple[int, Any]]:
        """Yields (row, token), or (row, text) for prompts that are texts, as soon as each exists.

        Leaving the loop early ends the generation.

        >>> for row, token in diffattn.Generator(model_folder).stream([97, 98], max_new_tokens=2, stop_tokens=[]):
        ...     print(row, type(token).__name__)
        0 int
        0 int
        """
        ids, _, texts = self._encoded(prompts)
        if texts and self._tokenizer is not None:
            raise ValueError("diffattn: argument 'prompts': expected token ids to stream with a tokenizer of "
                             "transformers, got texts")
        items: "queue.Queue[Any]" = queue.Queue()
        left = threading.Event()

        def put(row: int, item: Any) -> None:
            if left.is_set():
                raise GeneratorExit
            items.put((row, item))

        def run() -> None:
            try:
                if texts:
                    self._model.generate([prompts] if isinstance(prompts, str) else prompts,  # type: ignore[arg-type]
                                         on_text=put, **options)
                else:
                    self._model.generate_ids(ids, on_token=put, **options)
                items.put(None)
            except BaseException as error:  # handed to the caller's thread
                items.put(error)

        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        try:
            while True:
                item = items.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            left.set()
            worker.join()

    def _encoded(self, prompts: Prompts) -> Tuple[List[List[int]], bool, bool]:
        """Returns ids of each prompt, whether there is one prompt only, and whether prompts are texts."""
        if isinstance(prompts, torch.Tensor):
            if prompts.dim() not in (1, 2) or prompts.is_floating_point():
                raise TypeError("diffattn: argument 'prompts': expected a tensor of token ids, [N] or [B, N], got "
                                f"{prompts.dtype} {list(prompts.shape)}")
            prompts = prompts.tolist()
        if isinstance(prompts, str):
            return self._encoded_texts([prompts]), True, True
        if not isinstance(prompts, (list, tuple)):
            raise TypeError("diffattn: argument 'prompts': expected texts or lists of token ids, got "
                            f"{type(prompts).__name__}")
        if len(prompts) == 0:
            raise ValueError("diffattn: argument 'prompts': expected at least one, got none")
        if all(isinstance(prompt, str) for prompt in prompts):
            return self._encoded_texts(list(map(str, prompts))), False, True
        if all(isinstance(prompt, int) for prompt in prompts):
            return check_ids("prompts", [prompts]), True, False
        return check_ids("prompts", prompts), False, False

    def _encoded_texts(self, texts: Sequence[str]) -> List[List[int]]:
        for text in texts:
            check_text("prompts", text)
        if self._tokenizer is None:
            return []
        return [self._tokenizer(text).input_ids for text in texts]


def _causal(model: FolderModel) -> Model:
    if not isinstance(model, Model):
        raise TypeError(f"diffattn: argument 'model': expected a causal language model, got a {type(model).__name__}")
    return model


def _of_module(module: torch.nn.Module) -> Model:
    """Returns a Model on the parameters of a causal language model of transformers."""
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_json_file"):
        raise TypeError("diffattn: argument 'model': expected a folder or a causal language model of transformers, "
                        f"got {type(module).__name__}")
    _full.library()
    with tempfile.TemporaryDirectory() as folder:
        config.to_json_file(os.path.join(folder, "config.json"))
        weights = {name: value.detach() for name, value in module.state_dict().items()}
        made = torch.classes.diffattn.Model.with_weights(folder, weights)
    return Model(made, type(module).__name__, trainable=False)
