# SPDX-License-Identifier: Apache-2.0
"""Prints text that may hold file names of others. Does not need torch."""
import re
import sys
from typing import Optional, TextIO

# C0 without line feed and tab, DEL, C1, and the surrogates that stand for bytes that are not UTF-8.
_UNSAFE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\udc80-\\udcff]")


def _visible(match: "re.Match[str]") -> str:
    code = ord(match.group())
    return f"\\x{code - 0xdc00:02x}" if code >= 0xdc80 else f"\\u{code:04x}"


def terminal_text(text: str) -> str:
    """Returns text that cannot control a terminal, by the rules of apps/diffattn/terminal/print.cpp."""
    return _UNSAFE.sub(_visible, text)


def write(text: str, stream: Optional[TextIO] = None) -> None:
    """Writes text to a stream, by default standard error: safe if it is a terminal, otherwise unchanged."""
    stream = stream or sys.stderr
    stream.write(terminal_text(text) if stream.isatty() else text)
    stream.flush()
