# SPDX-License-Identifier: Apache-2.0
"""Loads the full library: models, generation, training and analysis in this process."""
import ctypes
import functools
from typing import Any, Callable, List, Optional

import diffattn_program
import torch
from diffattn_program import verbs

from diffattn import _library


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """Loads the full library. Raises RuntimeError if this installation has only the operators."""
    path = _library.folder() / _library.FULL
    if not path.is_file():
        raise RuntimeError(diffattn_program.only_operators(torch.__version__))
    torch.ops.load_library(str(path))
    return verbs.open_library(path)


def with_callback(on_token: Optional[Callable[[int, int, str], Any]], call: Callable[[int], Any]) -> Any:
    """Calls `call` with the address of a C function that hands rows, tokens and pieces of text to `on_token`.

    Ctrl-C and an exception of `on_token` stop the generation; both are raised after it.
    """
    failure: List[BaseException] = []
    signals = verbs.Signals()

    def take(row: int, token: int, text: bytes) -> int:
        if on_token is not None and not failure:
            try:
                on_token(row, token, text.decode())
            except BaseException as error:  # ctypes would print it and continue
                failure.append(error)
        return 1 if failure or signals.received is not None else 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)(take)
    with signals:
        result = call(ctypes.cast(callback, ctypes.c_void_p).value or 0)
    signals.deliver()
    if failure:
        raise failure[0]
    return result
