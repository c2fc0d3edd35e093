# SPDX-License-Identifier: Apache-2.0
"""Loads the full library (models, generation and the verbs of the program) and calls it in this process."""
import ctypes
import functools
import json
import signal
import threading
from types import FrameType
from typing import Any, Callable, List, Optional, Sequence, Type

import diffattn_program
import torch

from diffattn import _library

_FAILED, _WRONG_USE, _INTERRUPTED = 100, 101, 102  # as in python/src/verbs.cpp
_Stop = ctypes.CFUNCTYPE(ctypes.c_bool)
_Give = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """Loads the full library. Raises RuntimeError if this installation has only the operators."""
    path = _library.folder() / _library.FULL
    if not path.is_file():
        raise RuntimeError(diffattn_program.only_operators(torch.__version__))
    torch.ops.load_library(str(path))
    loaded = ctypes.CDLL(str(path))
    loaded.diffattn_run_verb.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, _Stop, _Give]
    return loaded


class Signals:
    """A scope in which SIGINT and SIGTERM ask a call to stop instead of raising an exception in a callback.

    The signal is raised again at the end of the scope, so that Python's own handler sees it.
    """

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._previous: dict = {}

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = number

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self.received is not None:
            signal.raise_signal(self.received)


def run_verb(name: str, arguments: Sequence[str], error: Type[Exception] = RuntimeError) -> Any:
    """Runs a verb of the program in this process with --json and returns its result.

    Raises ValueError for wrong arguments and `error` for other failures, with the text of the program.
    """
    full = library()
    texts: List[str] = []
    words = [word.encode() for word in ["--json", *arguments]]
    with Signals() as signals:
        code = full.diffattn_run_verb(
            name.encode(), (ctypes.c_char_p * len(words))(*words), len(words),
            _Stop(lambda: signals.received is not None),
            _Give(lambda text: texts.append(text.decode(errors="replace"))))
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    text = "".join(texts)
    if code in (_FAILED, _WRONG_USE):
        message = text if text.startswith("diffattn: ") else f"diffattn: {text}"
        raise (ValueError if code == _WRONG_USE else error)(message)
    result = json.loads(text) if text else None
    if code != 0:
        raise error(f"diffattn: {name} ended with exit code {code}: {result}")
    return result


def with_text_callback(on_text: Optional[Callable[[int, str], Any]], call: Callable[[int], Any]) -> Any:
    """Calls `call` with the address of a C function that hands pieces of text to `on_text`.

    Ctrl-C and an exception of `on_text` stop the generation; both are raised after it.
    """
    failure: List[BaseException] = []

    def take(row: int, text: bytes) -> int:
        if on_text is not None and text and not failure:
            try:
                on_text(row, text.decode())
            except BaseException as error:  # ctypes would print it and continue
                failure.append(error)
        return 1 if failure or signals.received is not None else 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_char_p)(take)
    with Signals() as signals:
        result = call(ctypes.cast(callback, ctypes.c_void_p).value or 0)
    if failure:
        raise failure[0]
    return result
