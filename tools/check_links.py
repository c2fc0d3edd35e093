#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every relative link of the Markdown files: the file exists, and so does the heading that an
anchor names. Links to other sites are not followed. Prints each broken link as file:line and exits 1.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
FENCE = re.compile(r"^\s*(```|~~~)")


def documents(root):
    """The Markdown files that git tracks or would track; all of them outside a checkout."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "*.md"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode == 0:
        names = [root / name for name in found.stdout.splitlines()]
    else:
        names = list(root.rglob("*.md"))
    return sorted(path for path in names if path.exists())


def lines_outside_code(path):
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(path):
    """The anchors that GitHub makes of a file's headings."""
    found = set()
    for _, line in lines_outside_code(path):
        heading = HEADING.match(line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        unique, count = name, 0
        while unique in found:
            count += 1
            unique = f"{name}-{count}"
        found.add(unique)
    return found


def broken_links(root):
    problems, links = [], 0
    for path in documents(root):
        for number, line in lines_outside_code(path):
            for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", link):
                    continue
                links += 1
                name, _, anchor = link.partition("#")
                target = (path.parent / name).resolve() if name else path
                where = f"{path.relative_to(root)}:{number}"
                if not target.exists():
                    problems.append(f"{where}: {link}: no such file")
                elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                    problems.append(f"{where}: {link}: no such heading")
    return links, problems


def main():
    links, problems = broken_links(ROOT)
    for problem in problems:
        print(problem)
    print(f"check_links: {links} links, {len(problems)} broken")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
