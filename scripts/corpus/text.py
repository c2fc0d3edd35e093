# SPDX-License-Identifier: Apache-2.0
"""Turns files of packages into documents of known kinds, and drops duplicates."""

import hashlib
import html
import re
from dataclasses import dataclass, field

KINDS = ("prose", "manual", "python", "c")
MIN_CHARACTERS = 300
MAX_CHARACTERS = 1 << 20
MAX_MEAN_LINE = 200  # longer lines are data or minified code
MIN_LETTERS = 0.45  # share of letters among characters that are not spaces; tables have fewer
MIN_ENGLISH = 0.04  # share of the words of prose that are among ENGLISH
ENGLISH = frozenset("the of and to a in is for that with".split())
MIN_PARAGRAPH = 60  # characters of a paragraph that counts for near-duplicates
MAX_KNOWN = 0.5  # share of a document that may have occurred before

_SUFFIXES = {
    "python": (".py", ".pyi"),
    "c": (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"),
    "prose": (".txt", ".rst", ".md", ".html", ".htm", ".xhtml", ".texi", ".tex"),
    "manual": (".pod",),
}
_MANUAL = re.compile(r"/man/man\d[a-z]*/|\.(\d|\dpm|\dperl|\dposix|\dssl|\dtcl|\derl)$")
_LEFT_OUT = re.compile(
    r"(^|/)(copying|copyright|licen[cs]e|changelog|changes|authors|contributors|news|index-|genindex|searchindex|"
    r"py-modindex|requirements|sources|record|top_level|entry_points|cmakelists)[^/]*$|"
    r"/(locale|testdata|test_data|fixtures|_static)/|\.dist-info/",
    re.IGNORECASE,
)


def kind_of(path: str) -> str | None:
    """Returns the kind of a file by its path, or None for files that the corpus leaves out."""
    if _LEFT_OUT.search(path):
        return None
    lower = path.lower()
    for kind, suffixes in _SUFFIXES.items():
        if lower.endswith(suffixes):
            return kind
    return "manual" if _MANUAL.search(path) else None


def kept_by_share(path: str, share: float) -> bool:
    """Chooses a share of the files of a large package by the hash of their paths."""
    number = int.from_bytes(hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()[:8], "big")
    return number < share * 2**64


_HTML_BODY = re.compile(r"<body[^>]*>(.*)</body>", re.S | re.I)
_HTML_DROP = re.compile(r"<(script|style|nav|head|svg)\b.*?</\1\s*>|<!--.*?-->", re.S | re.I)
_HTML_BREAK = re.compile(r"</?(p|div|li|h\d|tr|pre|dd|dt|table|ul|ol|dl|section)\b[^>]*>", re.I)
_HTML_LINE = re.compile(r"<br\b[^>]*>", re.I)
_HTML_TAG = re.compile(r"<[^>]+>")


def _html_text(text: str) -> str:
    body = _HTML_BODY.search(text)
    text = _HTML_DROP.sub(" ", body.group(1) if body else text)
    text = _HTML_LINE.sub("\n", _HTML_BREAK.sub("\n\n", text))
    text = html.unescape(_HTML_TAG.sub("", text)).replace("\u00b6", "")
    return re.sub(r"\n[ \t]*\n\s*", "\n\n", re.sub(r"[ \t]+\n", "\n", text))


_ROFF_ESCAPE = re.compile(r"\\f(\[[^\]]*\]|\(..|.)|\\[&|^/,:%)]|\\s[-+]?\d+|\\m\[[^\]]*\]")
_ROFF_CHARACTERS = {r"\-": "-", r"\ ": " ", r"\(aq": "'", r"\(dq": '"', r"\(bu": "*", r"\(em": "--",
                    r"\(en": "-", r"\(co": "(C)", r"\e": "\\", r"\(cq": "'", r"\(oq": "'", r"\(lq": '"',
                    r"\(rq": '"', r"\*(L\"": '"', r"\*(R\"": '"', r"\*(C+": "C++", r"\'": "'"}  # fmt: skip
_ROFF_TEXT = re.compile(r"^\.\s*(SH|SS|TH|B|I|BR|BI|RB|RI|IR|IB|SM|SB|IP|TP|Sh|Ss|[A-Z][a-z]) +(.*)$")


def _roff_text(text: str) -> str:
    """Keeps the words of a manual page: text lines and the arguments of the macros that print."""
    lines, inside = [], False
    for line in text.split("\n"):
        if line.startswith((".de", ".ig")):
            inside = True
        if line.startswith(".") or line.startswith("'"):
            if line.startswith(".."):
                inside = False
            found = _ROFF_TEXT.match(line)
            if found and not inside:
                gap = "\n" if found.group(1) in ("SH", "SS", "Sh", "Ss") else ""
                lines.append(gap + found.group(2).replace('"', ""))
            elif re.match(r"\.\s*(PP|P|LP|Pp|HP|sp)\b", line):
                lines.append("")
        elif not inside:
            lines.append(line)
    joined = _ROFF_ESCAPE.sub("", "\n".join(lines))
    for escape, character in _ROFF_CHARACTERS.items():
        joined = joined.replace(escape, character)
    return re.sub(r"\n{3,}", "\n\n", joined)


_LEADING_COMMENT = {
    "c": re.compile(r"\A\s*(/\*.*?\*/|(?://[^\n]*\n)+)\s*", re.S),
    "python": re.compile(r"\A\s*((?:#[^\n]*\n)+)\s*"),
}
_LICENCE = re.compile(r"copyright|licen[cs]e|SPDX", re.I)


def _without_licence(text: str, kind: str) -> str:
    for _ in range(3):
        found = _LEADING_COMMENT[kind].match(text)
        if not found or not _LICENCE.search(found.group(1)):
            break
        text = text[found.end() :]
    return text


def _is_english(text: str) -> bool:
    words = text.lower().split()
    return sum(map(ENGLISH.__contains__, words)) >= MIN_ENGLISH * len(words)


def document_of(path: str, content: bytes, kind: str) -> str | None:
    """Returns the text of a file, or None if it is binary, not English, too short, too long or a table."""
    try:
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    if path.lower().endswith((".html", ".htm", ".xhtml")):
        text = _html_text(text)
    elif kind == "manual" and not path.endswith(".pod"):
        text = _roff_text(text)
    elif kind in _LEADING_COMMENT:
        text = _without_licence(text, kind)
    text = "\n".join(line.rstrip() for line in text.split("\n")).strip() + "\n"
    if not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS:
        return None
    if len(text) > MAX_MEAN_LINE * text.count("\n"):
        return None
    if kind in ("prose", "manual") and not _is_english(text):
        return None
    visible = len(text) - text.count(" ") - text.count("\n")
    letters = sum(map(str.isalpha, text))
    return text if letters >= MIN_LETTERS * visible else None


@dataclass
class Duplicates:
    """Remembers documents, to drop copies and texts of which more than half occurred before."""

    documents: set[bytes] = field(default_factory=set)
    paragraphs: set[bytes] = field(default_factory=set)

    def new(self, text: str) -> bool:
        digest = hashlib.sha256(text.encode()).digest()[:16]
        if digest in self.documents:
            return False
        known, total, found = 0, 0, []
        for paragraph in text.split("\n\n"):
            words = " ".join(paragraph.split())
            if len(words) < MIN_PARAGRAPH:
                continue
            one = hashlib.sha256(words.encode()).digest()[:8]
            total += len(words)
            known += len(words) if one in self.paragraphs else 0
            found.append(one)
        if known > MAX_KNOWN * total:
            return False
        self.documents.add(digest)
        self.paragraphs.update(found)
        return True
