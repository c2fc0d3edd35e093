#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy 14 over the sources in src/ that compile without torch, CUDA and intrinsics.

.clang-tidy lists the checks. Sources of one folder are checked as one translation unit, which parses
their common headers once; if that unit does not pass, each of its sources is checked alone.
A source that passed is skipped until it, a header of ours that it includes, or the checks change:
build/tidy/ holds one empty file for each source that passed. --thorough adds Clang's
static analyser and checks every source alone, which takes several minutes.
"""
import argparse
import concurrent.futures
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "tidy"
PROGRAM = "clang-tidy-14"
FLAGS = ["-std=c++20", "-Iinclude", "-Isrc"]
GROUP = 12
THOROUGH = "misc-unused-using-decls,clang-analyzer-core.*,clang-analyzer-cplusplus.*,clang-analyzer-deadcode.*"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
NEEDS_MORE = re.compile(r"^(torch|ATen|c10|caffe2)/|^cuda|^cooperative_groups|^mma\.h|intrin\.h$|^cpuid\.h$")


class Includes:
    """The include graph of this repository. Each file is read once."""

    def __init__(self):
        self.names_of = {}

    def names(self, path):
        if path not in self.names_of:
            self.names_of[path] = INCLUDE.findall(path.read_text(encoding="utf-8"))
        return self.names_of[path]

    def closure(self, source):
        """Returns our own files that `source` reaches, and the names of all headers they include."""
        ours, names, waiting = {source}, set(), [source]
        while waiting:
            path = waiting.pop()
            for name in self.names(path):
                names.add(name)
                for folder in (path.parent, ROOT / "include", ROOT / "src"):
                    header = (folder / name).resolve()
                    if header not in ours and header.is_relative_to(ROOT) and header.is_file():
                        ours.add(header)
                        waiting.append(header)
        return ours, names


class Checker:
    def __init__(self, thorough):
        self.arguments = [f"--checks={THOROUGH}"] if thorough else []
        self.group_size = 1 if thorough else GROUP
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, check=True).stdout
        settings = repr((self.arguments, FLAGS)).encode()
        self.common = b"\0".join([version, (ROOT / ".clang-tidy").read_bytes(), settings])
        self.marks = {}

    def choose(self, given):
        """Returns the sources that have not passed yet, and the number of those that have."""
        includes, chosen = Includes(), []
        for source in given or sorted((ROOT / "src").rglob("*.cpp")):
            files, names = includes.closure(source)
            if not any(NEEDS_MORE.search(name) for name in names):
                self.marks[source] = CACHE / self.fingerprint(files)
                if not self.marks[source].exists():
                    chosen.append(source)
        return chosen, len(self.marks) - len(chosen)

    def fingerprint(self, files):
        digest = hashlib.sha256(self.common)
        for path in sorted(files):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def groups(self, sources):
        for _, members in itertools.groupby(sources, key=lambda source: source.parent):
            members = list(members)
            for first in range(0, len(members), self.group_size):
                yield members[first:first + self.group_size]

    def check_group(self, sources):
        """Returns the sources with problems, each with what clang-tidy printed."""
        if len(sources) > 1:
            text = "".join(f'#include "{source}"  // NOLINT\n' for source in sources)
            unit = CACHE / (hashlib.sha256(text.encode()).hexdigest() + ".cpp")
            unit.write_text(text, encoding="utf-8")
            status, _ = self.run(unit)
            unit.unlink()
            if status == 0:
                for source in sources:
                    self.marks[source].touch()
                return []
        problems = []
        for source in sources:
            status, text = self.run(source)
            if status == 0:
                self.marks[source].touch()
            else:
                problems.append((source, text))
        return problems

    def run(self, source):
        command = [PROGRAM, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", *self.arguments,
                   str(source), "--", *FLAGS]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout or done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--thorough", action="store_true", help="add the static analyser")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="clang-tidy processes (default: cores)")
    parser.add_argument("sources", nargs="*", help="sources to check (default: all of src/)")
    options = parser.parse_args()
    if not shutil.which(PROGRAM):
        print(f"check_tidy: {PROGRAM} is not installed; run scripts/setup_check", file=sys.stderr)
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    checker = Checker(options.thorough)
    chosen, passed = checker.choose([pathlib.Path(name).resolve() for name in options.sources])
    # Large groups first, so that no core waits for one long group at the end.
    groups = sorted(checker.groups(chosen), key=lambda group: -sum(source.stat().st_size for source in group))
    failed, shown = 0, set()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for problems in pool.map(checker.check_group, groups):
            failed += len(problems)
            # A problem in a header appears once for every source that includes it: print it once.
            for _, text in problems:
                if text not in shown:
                    shown.add(text)
                    print(text.replace(f"{ROOT}/", ""), end="", flush=True)
    print(f"check_tidy: {len(chosen) + passed} files ({passed} unchanged), {failed} with problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
