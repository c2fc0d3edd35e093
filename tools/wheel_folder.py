#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps a build folder of `make wheel` only if sources, torch and words are those that it was made with.

A build tool compares the times of files, which say nothing after a copy of the sources or another torch in the same
place. This tool compares their contents, so that no wheel gets objects of another torch or of older sources.

usage: tools/wheel_folder.py [--torch FOLDER_OF_TORCH] FOLDER [WORD...]
    Empties FOLDER if anything changed. WORDs are options and versions of tools.
"""
import argparse
import hashlib
import pathlib
import shutil
from typing import Iterable, List, Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = ("CMakeLists.txt", "apps", "benchmarks/cuda", "cmake", "include", "python/CMakeLists.txt", "python/src",
           "src", "tests/kernels/cuda/keep_report.sh", "viewer")
STAMP = "made_with.txt"


def files_below(root: pathlib.Path, names: Iterable[str]) -> List[pathlib.Path]:
    """Returns the files with these names and those in folders with these names, sorted."""
    found = [path for name in names for path in (root / name, *(root / name).rglob("*"))]
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def fingerprint(root: pathlib.Path, torch: Optional[pathlib.Path], words: Iterable[str]) -> str:
    """Returns a checksum of all sources, of torch's version and headers, and of the words."""
    files = files_below(root, SOURCES)
    if torch:
        files += files_below(torch, ("version.py", "include"))
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    total.update("\n".join(words).encode())
    return total.hexdigest()


def prepare(folder: pathlib.Path, made_with: str) -> bool:
    """Empties the folder unless it was made with the same. Returns whether it was kept."""
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text() == made_with:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stamp.write_text(made_with)
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path)
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    prepare(given.folder, fingerprint(ROOT, given.torch, given.words))


if __name__ == "__main__":
    main()
