# SPDX-License-Identifier: Apache-2.0
"""Runs verbs of the program in this process. Does not need torch."""
import ctypes
import json
import os
import signal
import threading
from types import FrameType
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Type

FAILED, WRONG_USE, OUT_OF_MEMORY = 100, 101, 102  # as in python/src/run_verb.h
EXIT_CODES = {FAILED: 1, WRONG_USE: 2, OUT_OF_MEMORY: 4}  # those of the program after these errors
_Stop = ctypes.CFUNCTYPE(ctypes.c_bool)
_Give = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def open_library(path: "os.PathLike[str]") -> ctypes.CDLL:
    """Loads a library with the function diffattn_run_verb."""
    library = ctypes.CDLL(os.fspath(path))
    library.diffattn_run_verb.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, _Stop, _Give]
    return library


class Signals:
    """A scope in which SIGINT and SIGTERM ask a call to stop instead of raising an exception in a callback.

    Only the main thread may set handlers; in other threads the scope does nothing.
    """

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._previous: dict = {}

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = number

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def deliver(self, message: str = "") -> None:
        """Hands a received signal to the handler from before the scope. KeyboardInterrupt gets `message`."""
        if self.received is None:
            return
        try:
            signal.raise_signal(self.received)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(message) from None


class Outcome(NamedTuple):
    code: int  # exit code of the verb, or a key of EXIT_CODES
    text: str  # JSON, or the message of an error


def run(library: ctypes.CDLL, name: str, arguments: Sequence[str], signals: Signals) -> Outcome:
    """Runs a verb. A signal of `signals` stops it."""
    texts: List[bytes] = []
    words = [os.fsencode(word) for word in arguments]
    with signals:
        code = library.diffattn_run_verb(
            name.encode(), (ctypes.c_char_p * len(words))(*words), len(words),
            _Stop(lambda: signals.received is not None), _Give(texts.append))
    return Outcome(code, b"".join(texts).decode(errors="backslashreplace"))


def message_of(text: str) -> str:
    """Returns the text of an error with the name of the program in front."""
    return text if text.startswith("diffattn: ") else f"diffattn: {text}"


def result_of(library: ctypes.CDLL, name: str, arguments: Sequence[str], error: Type[Exception] = RuntimeError,
              stopped: Callable[[Any], str] = lambda result: "") -> Any:
    """Runs a verb with --json and returns its result.

    Raises ValueError for wrong arguments and `error` for other failures, with the text of the program. After Ctrl-C,
    `stopped` makes the text of KeyboardInterrupt from the result.
    """
    signals = Signals()
    code, text = run(library, name, ["--json", *arguments], signals)
    if code in EXIT_CODES:
        signals.deliver(message_of(text))
        raise (ValueError if code == WRONG_USE else error)(message_of(text))
    result = json.loads(text)
    signals.deliver(stopped(result))
    if code != 0:
        raise error(f"diffattn: {name} ended with exit code {code}: {result}")
    return result


def command_words(**options: Any) -> List[str]:
    """Returns the words of a command line: flags for True, nothing for None and False, repeats for lists."""
    words: List[str] = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            for one in value:
                words += [option, os.fspath(one)]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words
