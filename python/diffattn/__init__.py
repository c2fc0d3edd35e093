# SPDX-License-Identifier: Apache-2.0
"""Fused differential attention for PyTorch.

    out = diffattn.attention(q1, q2, k1, k2, v, lam, causal=True)

computes (softmax(q1 k1^T / sqrt(d)) - lam softmax(q2 k2^T / sqrt(d))) v in one operator, with
gradients. Importing this package loads the operators torch.ops.diffattn.*. `diffattn.nn` has
modules; `diffattn.hf` accelerates Hugging Face's DiffLlama; `diffattn.parallel` shards the operator over
GPUs. `load`, `train`, `analyze` and `convert` use the C++ models and tools in this process.
"""
import importlib
from typing import TYPE_CHECKING, Any, Dict, List

from diffattn import _short_spins

_short_spins.load_torch()

import torch  # noqa: E402

from diffattn import _library  # noqa: E402

_library.load()

from diffattn import nn  # noqa: E402
from diffattn.ops import (STATS, attention, attention_map, attention_stats,  # noqa: E402
                          decode)
from diffattn.model import Classifier, Model, TextToText, load  # noqa: E402
from diffattn.generator import Generator  # noqa: E402
from diffattn.convert import ConversionError, convert  # noqa: E402
from diffattn.analysis import Analysis, analyze  # noqa: E402
from diffattn.verbs import train  # noqa: E402

if TYPE_CHECKING:
    from diffattn import hf, parallel

__version__ = str(_library.build().get("version", "0+unknown"))
__all__ = ["STATS", "Analysis", "Classifier", "ConversionError", "Generator", "Model", "TextToText", "analyze",
           "attention", "attention_map", "attention_stats", "convert", "decode", "hf", "info", "load", "nn",
           "parallel", "train"]

_ON_FIRST_USE = ("hf", "parallel")  # they import transformers and torch.distributed


def info() -> Dict[str, Any]:
    """Returns versions, paths, and the backend for each device and dtype on this machine.

    `python -m diffattn info` prints more.

    >>> sorted(diffattn.info()["backends"]["cpu"])
    ['bfloat16', 'float16', 'float32', 'float64']
    """
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    types = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    program = _library.program()
    return {
        "version": __version__,
        "torch": torch.__version__,
        "built_for_torch": _library.build().get("torch"),
        "cuda_kernels": _library.build().get("cuda_kernels"),
        "library": str(_library.path()),
        "program": str(program) if program else None,
        "backends": {device: {str(dtype).removeprefix("torch."):
                              torch.ops.diffattn.backend_for(torch.device(device), dtype)
                              for dtype in types} for device in devices},
    }


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"diffattn.{name}")
    raise AttributeError(f"module 'diffattn' has no attribute '{name}'")


def __dir__() -> List[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
