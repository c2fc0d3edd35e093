#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/io/unicode/{class,decomposition,combining}_data.cpp from a Python Unicode database.

    tools/make_unicode_tables.py [--check]

Needs `pip install unicodedata2==16.0.0`: version 16.0 is what the regular expressions of Hugging
Face tokenizers 0.23 know. --check compares with the files that are there and writes nothing.
"""
import pathlib
import sys

import unicodedata2 as ucd

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "src/io/unicode"
LETTER, NUMBER, SPACE, WORD, MARK, UPPER, LOWER = 1, 2, 4, 8, 16, 32, 64
# White_Space, which no general category equals.
SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000}
# Alphabetic symbols (circled and squared letters) and Join_Control: in \w, in no category of it.
EXTRA_WORD = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
              *range(0x1F170, 0x1F18A), 0x200C, 0x200D}
SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xAC00 + 11172)


def code_points():
    return (c for c in range(0x110000) if c not in SURROGATES)


def class_of(c):
    category = ucd.category(chr(c))
    bits = LETTER if category[0] == "L" else NUMBER if category[0] == "N" else 0
    if c in SPACES:
        bits |= SPACE
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in EXTRA_WORD:
        bits |= WORD
    if category[0] == "M":
        bits |= MARK
    if category in ("Lu", "Lt"):
        bits |= UPPER
    if category == "Ll":
        bits |= LOWER
    return bits


def ranges(value_of):
    """[first, last, value] for runs of code points with the same value, where it is not 0."""
    runs = []
    for c in code_points():
        value = value_of(c)
        if not value:
            continue
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == value:
            runs[-1][1] = c
        else:
            runs.append([c, c, value])
    return runs


def decompositions():
    """(composed, first, second or 0, composes back), one step, sorted by composed."""
    rows = []
    for c in code_points():
        text = ucd.decomposition(chr(c))
        if not text or text.startswith("<") or c in HANGUL:
            continue
        parts = [int(part, 16) for part in text.split()]
        back = len(parts) == 2 and ucd.normalize("NFC", chr(c)) == chr(c)
        rows.append((c, parts[0], parts[1] if len(parts) == 2 else 0, int(back)))
    return rows


def table(kind, name, comment, rows):
    cells = ["{" + ",".join(f"{v:#x}" if v > 9 else str(v) for v in row) + "}," for row in rows]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 100:
            lines.append(line)
            line = "   "
        line += " " + cell
    lines.append(line)
    body = "\n".join(lines)
    return f"""// SPDX-License-Identifier: Apache-2.0
// Written by tools/make_unicode_tables.py from Unicode {ucd.unidata_version}; not edited by hand.
#include "unicode_data.h"

namespace diffattn::io::unicode {{

// {comment}
// clang-format off
static constexpr {kind} kRows[] = {{
{body}
}};
// clang-format on

const std::span<const {kind}> {name} = kRows;

}}  // namespace diffattn::io::unicode
"""


def main():
    files = {
        "class_data.cpp": table("Range", "kClassRanges", "first, last, bits of CharClass",
                                ranges(class_of)),
        "combining_data.cpp": table("Range", "kCombiningRanges", "first, last, combining class",
                                    ranges(lambda c: ucd.combining(chr(c)))),
        "decomposition_data.cpp": table("Decomposition", "kDecompositions",
                                        "composed, first, second or 0, whether it composes back",
                                        decompositions()),
    }
    stale = 0
    for name, text in files.items():
        path = FOLDER / name
        if "--check" in sys.argv[1:]:
            stale += not path.exists() or path.read_text() != text
        else:
            path.write_text(text)
        print(f"{name}: {len(text.splitlines())} lines, {len(text)} bytes")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
