#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules that keep the layers apart: who may include whom, inline assembly only in ptx/,
file length, no paths of one machine. Prints each violation as file:line and exits 1.

A wrong include would often compile unnoticed, because the libraries are installed side by side.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 600

SOURCES = {".h", ".cpp", ".cuh", ".cu"}
TEXTS = SOURCES | {".py", ".md", ".cmake", ".txt", ".json", ".toml", ".js", ".mjs", ".ts", ".html", ".css"}
SKIPPED = {"build", ".venv", ".git", "node_modules", "__pycache__", "dist"}
TEST_DATA = "tests/data/"

TORCH = r"(torch|ATen|c10|caffe2)/"
CUDA = r"^(cuda_|cuda/|cuda\.h|cooperative_groups|mma\.h)"

# Folder -> (what its includes may match, what they must not). Longest folder first wins. Standard and
# system headers (no slash, or known prefixes) are always allowed unless the second pattern bans them.
RULES = {
    "include/diffattn/kernels": (r"diffattn/kernels/", TORCH + "|nlohmann/|" + CUDA),
    "include/diffattn/io": (r"diffattn/io/|nlohmann/", TORCH),
    "src/kernels/reference": (r"diffattn/kernels/|kernels/", TORCH + "|nlohmann/|immintrin|" + CUDA),
    "src/kernels/cpu": (r"diffattn/kernels/|kernels/", TORCH + "|nlohmann/|" + CUDA),
    "src/kernels/cuda": (r"diffattn/kernels/|kernels/|cuda|cuda_", TORCH + "|nlohmann/"),
    "src/kernels": (r"diffattn/kernels/|kernels/", TORCH + "|nlohmann/|immintrin|" + CUDA),
    "src/io": (r"diffattn/io/|io/|nlohmann/", TORCH + "|diffattn/kernels/|diffattn/ops"),
    "src/ops": (r"diffattn/|ops/|" + TORCH, r"^kernels/|nlohmann/|" + CUDA),
    "src/nn": (r"diffattn/(nn|ops)|nn/|" + TORCH, r"kernels/|nlohmann/"),
    "include/diffattn/data": (r"diffattn/(data|io)/|torch/torch.h", r"kernels/|nlohmann/"),
    "include/diffattn/convert": (r"diffattn/(convert|io)/", TORCH + "|kernels/|nlohmann/"),
    "src/convert": (r"diffattn/(convert|io)/|convert/|nlohmann/|diffattn/kernels/half.h",
                    TORCH + r"|diffattn/(ops|nn|train|data)|kernels/(?!half\.h)"),
    "src/data": (r"diffattn/(data|io)/|data/|nlohmann/", TORCH + "|kernels/"),
    "src/train": (r"diffattn/(nn|ops|io|data|analysis|train)|train/|" + TORCH + r"|nlohmann/", r"kernels/"),
    "src/compare": (r"diffattn/(nn|ops|io|data|train|analysis|compare)|compare/|" + TORCH + r"|nlohmann/", r"kernels/"),
    "src": (r"diffattn/(nn|ops|io|data|train|analysis)|" + TORCH + r"|nlohmann/", r"kernels/"),
    "src/analysis/model": (r"diffattn/(nn|ops|io|analysis)|analysis/|" + TORCH, r"kernels/|nlohmann/"),
    "src/analysis/report": (r"diffattn/(io|analysis)/|analysis/(report|picture)/|nlohmann/", TORCH),
    "src/analysis/picture": (r"diffattn/(io|analysis)/|analysis/(report|picture)/", TORCH + "|nlohmann/"),
    "apps": (r"diffattn/|CLI/|fmt/|nlohmann/|" + TORCH, r"^(kernels|ops|io|nn|train)/"),
    "tests/kernels": (r"", TORCH),
    "tests/io": (r"", TORCH),
    "tests/analysis": (r"", TORCH),
    "tests/analysis/model": (r"", CUDA),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
ASSEMBLY = re.compile(r"\b(asm|__asm__)\b\s*(volatile|__volatile__)?\s*\(")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|Users|work|mnt)/\w")
OUTSIDE_PAGE = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bnew Function\b|\bfetch\(|"
                          r"XMLHttpRequest|WebSocket|sendBeacon|importScripts|https?://")
ISA_FOLDERS = re.compile(r"/(avx2|avx512|avx512_bf16|amx)/")


def rule_for(path):
    for folder in sorted(RULES, key=len, reverse=True):
        if path.startswith(folder + "/"):
            return RULES[folder]
    return None


def check_includes(path, number, line, problems):
    match = INCLUDE.match(line)
    rule = rule_for(path)
    if not match or rule is None:
        return
    allowed, banned = rule
    name = match.group(1)
    if re.search(banned, name):
        problems.append(f"{path}:{number}: {name} is not for this layer")
    elif '"' in line and "/" in name and allowed and not re.search("^(" + allowed + ")", name):
        problems.append(f"{path}:{number}: {name} is not among what this layer may include")
    if name == "immintrin.h" and path.startswith("src/") and not ISA_FOLDERS.search(path):
        problems.append(f"{path}:{number}: intrinsics belong into a per-ISA folder")


def check_script(path, number, line, problems):
    """The page must not reach out, and text must never become markup or code."""
    match = OUTSIDE_PAGE.search(line)
    if match and "http://www.w3.org/2000/svg" not in line:
        problems.append(f"{path}:{number}: {match.group(0)} is not for a self-contained page")


def check_file(path, problems):
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    suffix = pathlib.Path(path).suffix
    if suffix in SOURCES | {".py", ".js", ".mjs", ".css"}:
        if len(lines) > MAX_LINES:
            problems.append(f"{path}: {len(lines)} lines, more than {MAX_LINES}")
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
            problems.append(f"{path}:1: no SPDX line")
    for number, line in enumerate(lines, 1):
        if suffix in SOURCES:
            check_includes(path, number, line, problems)
            if ASSEMBLY.search(line) and path.startswith("src/") and "/ptx/" not in path:
                problems.append(f"{path}:{number}: inline assembly outside ptx/")
        if suffix == ".js" and path.startswith("viewer/"):
            check_script(path, number, line, problems)
        if MACHINE_PATH.search(line) and path != "tools/check_layers.py":
            problems.append(f"{path}:{number}: a path of one machine")


def files():
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        if path.is_file() and path.suffix in TEXTS and not SKIPPED & set(relative.parts):
            if not str(relative).startswith(TEST_DATA):
                yield str(relative)


def main():
    problems = []
    count = 0
    for path in files():
        check_file(path, problems)
        count += 1
    for problem in problems:
        print(problem)
    print(f"check_layers: {count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
