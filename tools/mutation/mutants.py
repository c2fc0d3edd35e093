# SPDX-License-Identifier: Apache-2.0
"""Finds mutants in clang-formatted C++ and writes code that holds all of them.

Every condition of an `if`, a `while`, a check macro or a returned boolean gives these mutants:
  off       an `if` that is never taken, a check that always holds
  drop      one operand of && or || less
  boundary  < for <=, > for >= and the reverse
  equality  == for != and the reverse

The result asks `diffattn_mutation::on(id)` at run time, so that one build holds every mutant.
"""
import dataclasses
import re

CHECKS = r"TORCH_CHECK(?:_\w+)?|expect"
OPENING, CLOSING = "([{", ")]}"
SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}


@dataclasses.dataclass
class Mutant:
    id: int
    file: str
    line: int
    kind: str
    text: str  # the code it changes
    change: str


def masked(text):
    """The text with comments, strings and characters blanked, at equal positions."""
    pattern = re.compile(r'R"(?P<mark>\w*)\(.*?\)(?P=mark)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
                         r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", "_", match.group(0)), text)


def closing(mask, opening):
    """The position of the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(mask)):
        depth += (mask[at] in OPENING) - (mask[at] in CLOSING)
        if depth == 0:
            return at
    raise ValueError("unbalanced brackets")


def top_level(mask, begin, end, pattern):
    """Matches of a pattern between `begin` and `end` outside of brackets."""
    depths, depth = [], 0
    for at in range(begin, end):
        depths.append(depth)
        depth += (mask[at] in OPENING) - (mask[at] in CLOSING)
    return [match for match in re.compile(pattern).finditer(mask, begin, end) if depths[match.start() - begin] == 0]


class File:
    """One source file: finds its mutants and writes the mutated text."""

    def __init__(self, name, text, first_id):
        self.name, self.text, self.mask = name, text, masked(text)
        self.next_id = first_id
        self.mutants = []

    def add(self, begin, end, kind, change):
        code = " ".join(self.text[begin:end].split())
        line = self.text.count("\n", 0, begin) + 1
        self.mutants.append(Mutant(self.next_id, self.name, line, kind, code, change))
        self.next_id += 1
        return f"diffattn_mutation::on({self.mutants[-1].id})"

    def parts(self, begin, end, operator):
        matches = top_level(self.mask, begin, end, rf"\s{operator}\s")
        edges = [begin] + [edge for match in matches for edge in match.span()] + [end]
        return list(zip(edges[::2], edges[1::2]))

    def condition(self, begin, end):
        """The mutated text of a boolean expression."""
        while self.text[begin].isspace():
            begin += 1
        while self.text[end - 1].isspace():
            end -= 1
        if top_level(self.mask, begin, end, r"\s\?\s"):
            return self.text[begin:end]
        for operator, sign in ((r"\|\|", "||"), ("&&", "&&")):
            parts = self.parts(begin, end, operator)
            if len(parts) > 1:
                return f" {sign} ".join(self.operand(*part, sign) for part in parts)
        opening = begin + (self.mask[begin] == "!")
        if self.mask[opening] == "(" and closing(self.mask, opening) == end - 1:
            return self.text[begin:opening + 1] + self.condition(opening + 1, end - 1) + ")"
        return self.comparison(begin, end)

    def operand(self, begin, end, sign):
        choice = self.add(begin, end, "drop", f"operand of {sign} dropped")
        inner = self.condition(begin, end)
        return f"(!{choice} && ({inner}))" if sign == "||" else f"({choice} || ({inner}))"

    def comparison(self, begin, end):
        matches = top_level(self.mask, begin, end, r"\s(<=?|>=?|==|!=)\s")
        if len(matches) != 1:
            return self.text[begin:end]
        left, right = self.text[begin:matches[0].start()], self.text[matches[0].end():end]
        sign = matches[0].group(1)
        other = SWAPPED[sign]
        choice = self.add(begin, end, "equality" if sign in ("==", "!=") else "boundary", f"{other} for {sign}")
        return f"({choice} ? ({left} {other} {right}) : ({left} {sign} {right}))"

    def sites(self):
        """Yields (kind, begin, end) of conditions, in order and without overlap."""
        done = 0
        pattern = re.compile(rf"\b(?:(if|while) \(|({CHECKS})\(|(return) (?!\[))")
        for match in pattern.finditer(self.mask):
            if match.start() < done or self.in_constexpr(match.start()):
                continue
            if match.group(3):
                kind, begin = "return", match.end()
                stop = top_level(self.mask, begin, len(self.mask), r"[;}]")
                end = stop[0].start() if stop else begin
                if "{" in self.mask[begin:end] or not top_level(self.mask, begin, end,
                                                                r"\s(\|\||&&|<=?|>=?|==|!=)\s"):
                    continue
            else:
                kind, begin = match.group(1) or "check", match.end()
                end = closing(self.mask, begin - 1)
                if kind == "check":
                    commas = top_level(self.mask, begin, end, ",")
                    if not commas or self.mask[match.start() - 1] in ".>":
                        continue
                    end = commas[0].start()
                else:
                    begin = max([begin] + [split.end() for split in top_level(self.mask, begin, end, ";")])
                if top_level(self.mask, begin, end, r"[\w\]]\s=\s|\[&?\]"):
                    continue
            if self.mask[begin:end].strip():
                yield kind, begin, end
                done = end

    def in_constexpr(self, at):
        """True inside a constexpr function: it cannot read the environment."""
        head = self.mask.rfind("\n}", 0, at)
        for match in re.finditer(r"\bconstexpr\b[^;=]*\)\s*(?:noexcept )?\{", self.mask[max(head, 0):at]):
            opening = max(head, 0) + match.end() - 1
            if closing(self.mask, opening) > at:
                return True
        return False

    def mutated(self):
        out, done = [], 0
        for kind, begin, end in self.sites():
            out.append(self.text[done:begin])
            if kind == "if":
                choice = self.add(begin, end, "off", "never taken")
                out.append(f"!{choice} && ({self.condition(begin, end)})")
            elif kind == "check":
                choice = self.add(begin, end, "off", "always holds")
                out.append(f"({choice} || ({self.condition(begin, end)}))")
            else:
                out.append(self.condition(begin, end))
            done = end
        return "".join(out) + self.text[done:]
