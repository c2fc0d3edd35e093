#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports how many lines of the sources the tests of a coverage build have run.

  tools/coverage.py --build build/coverage --minimum 90 src/io src/convert

Runs gcov over the counters that the test programs wrote (--reset deletes them). A line counts as run if any program
ran it. Prints the share of each folder and its least covered files. Exits 1 if a folder is below --minimum percent.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def counters(build):
    return sorted(build.rglob("*.gcda"))


def read_lines(build):
    """Returns {file: {line: True if it ran}} for the files of this repository."""
    files = {}
    for counter in counters(build):
        shown = subprocess.run(["gcov", "--json-format", "--stdout", str(counter)], cwd=build, check=True,
                               capture_output=True, text=True)
        for document in filter(None, shown.stdout.splitlines()):
            for file in json.loads(document)["files"]:
                path = (build / file["file"]).resolve()
                if not path.is_relative_to(ROOT):
                    continue
                lines = files.setdefault(str(path.relative_to(ROOT)), {})
                for line in file["lines"]:
                    number = line["line_number"]
                    lines[number] = lines.get(number, False) or line["count"] > 0
    return files


def percent(lines):
    return 100 * sum(lines) / max(1, len(lines))


def report(folder, files, worst):
    """Prints one folder and returns its percentage."""
    own = {name: list(lines.values()) for name, lines in files.items() if name.startswith(folder.rstrip("/") + "/")}
    every = [line for lines in own.values() for line in lines]
    print(f"coverage: {folder:14} {percent(every):5.1f} % of {len(every)} lines in {len(own)} files")
    for name in sorted(own, key=lambda name: percent(own[name]))[:worst]:
        missing = [str(number) for number, ran in sorted(files[name].items()) if not ran]
        if missing:
            print(f"  {percent(own[name]):5.1f} %  {name}: not run: {', '.join(missing)}")
    return percent(every) if every else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=["src/io", "src/convert"])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "coverage")
    parser.add_argument("--minimum", type=float, default=0, help="percent of lines in every folder")
    parser.add_argument("--worst", type=int, default=5, help="show this many files of each folder")
    parser.add_argument("--reset", action="store_true", help="delete the counters and exit")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    if arguments.reset:
        for counter in counters(build):
            counter.unlink()
        return 0
    files = read_lines(build)
    shares = [report(folder, files, arguments.worst) for folder in arguments.folders]
    return 1 if min(shares) < arguments.minimum else 0


if __name__ == "__main__":
    sys.exit(main())
