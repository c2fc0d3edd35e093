#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules that keep the layers apart: who may include whom, inline assembly only in ptx/,
file length, one way to print, no paths of one machine. Prints each violation as file:line and exits 1.

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
FIXTURES = "tests/fixtures/"

TORCH = r"(torch|ATen|c10|caffe2)/"
CUDA = r"^(cuda_|cuda/|cuda\.h|cooperative_groups|mma\.h)"

# Folder -> (what its includes may match, what they must not match). The longest folder wins. The first
# pattern is for quoted includes; standard and system headers are allowed unless the second bans them.
# Private headers of another layer are named one by one: a layer's other internals stay its own.
EVERY_LAYER = r"diffattn/error\.h"
PRIVATE_KERNELS = r"kernels/(few_rows|layers|loss|optimizer|selective_scan|token_step)\.h"
PRIVATE_OPS = (r"ops/(dispatch/attention_checkpoint|"
               r"layers/(add_rms_norm|float_product|gated|lambda_vectors|linears|loss|projected_heads|selective_scan|token_layer))\.h")
PRIVATE_NN = (r"nn/(attention/(step_attention|text_rows)|models/(attention_penalty|layer_kinds|prompts)|"
              r"parts/pre_norm_layer|routes/shared_rows)\.h")
PRIVATE_IO = (r"io/(cgroup|chat_prompt|chat_template/chat_template|checked|hash|manifest|settings|stop_text|text|"
              r"unicode/utf8|safetensors/sharded)\.h")
PRIVATE_MODELS = r"models/(loaded_model|tensor_file)\.h"
PRIVATE_TRAIN = (r"train/(checkpoint_folder|checkpoints|event_file|flops|language_data|memory_estimate|metrics_log|"
                 r"new_model|parameter_count|schedule|tasks/(evaluator|round_weights))\.h")
PRIVATE_SERVE = r"serve/(service|engine/scheduler|http/http|page/page)\.h"
PRIVATE_COMPARE = r"compare/(compare|haystack|recipes|results|token_labels)\.h"


def layer(*own):
    """A pattern of the folders and headers that a layer may include."""
    return "|".join(own)


KERNELS = layer(r"diffattn/kernels/", r"kernels/")
PUBLIC_ONLY = r"diffattn/"
RULES = {
    "include/diffattn": (PUBLIC_ONLY, r"nlohmann/|toml\+\+|" + CUDA),
    "include/diffattn/kernels": (r"diffattn/kernels/", TORCH + "|nlohmann/|" + CUDA),
    "include/diffattn/io": (r"diffattn/io/|nlohmann/", TORCH),
    "include/diffattn/convert": (r"diffattn/(convert/|io/|gqa_pairing\.h)", TORCH + "|kernels/|nlohmann/"),
    "include/diffattn/data": (r"diffattn/(data|io)/", TORCH + r"|kernels/|nlohmann/"),
    "include/diffattn/nn": (r"diffattn/(nn/|ops|gqa_pairing\.h)|" + TORCH, r"kernels/|nlohmann/"),
    "include/diffattn/infer": (r"diffattn/(infer|nn)/|" + TORCH, r"kernels/|nlohmann/"),
    "include/diffattn/models": (r"diffattn/(models|nn|io)/|" + TORCH, r"kernels/|nlohmann/"),
    "include/diffattn/parallel": (r"diffattn/parallel/|" + TORCH, r"kernels/|nlohmann/"),
    "src": (r"(?!)", TORCH),
    "src/kernels": (KERNELS, TORCH + "|nlohmann/|immintrin|" + CUDA),
    "src/kernels/reference": (KERNELS, TORCH + "|nlohmann/|immintrin|" + CUDA),
    "src/kernels/cpu": (KERNELS, TORCH + "|nlohmann/|" + CUDA),
    "src/kernels/cuda": (layer(KERNELS, "cuda"), TORCH + "|nlohmann/"),
    "src/io": (r"diffattn/io/|io/|nlohmann/|toml\+\+/", TORCH + "|diffattn/kernels/|diffattn/ops"),
    "src/convert": (layer(r"diffattn/(convert|io)/", r"convert/", PRIVATE_IO, r"nlohmann/",
                          r"diffattn/kernels/half\.h"),
                    TORCH + r"|kernels/(?!half\.h)"),
    "src/data": (layer(r"diffattn/(data|io)/", r"data/", PRIVATE_IO, r"nlohmann/"), TORCH + "|kernels/"),
    "src/ops": (layer(r"diffattn/(kernels|ops)", r"ops/", PRIVATE_KERNELS, TORCH),
                r"^kernels/(?!(few_rows|layers|loss|optimizer|selective_scan|token_step)\.h)|nlohmann/|" + CUDA),
    "src/nn": (layer(r"diffattn/(nn/|ops)", r"nn/", PRIVATE_OPS, TORCH), r"kernels/|nlohmann/"),
    "src/models": (layer(r"diffattn/(models|nn|io)/", r"diffattn/ops", r"models/", PRIVATE_IO, TORCH,
                         r"nlohmann/"), r"kernels/"),
    "src/parallel": (layer(r"diffattn/parallel/", r"diffattn/ops", r"parallel/", TORCH), r"kernels/|nlohmann/|" + CUDA),
    "src/infer": (layer(r"diffattn/(infer|nn)/", r"diffattn/ops", r"infer/", PRIVATE_NN,
                        r"ops/layers/token_step\.h", r"kernels/token_step\.h", TORCH),
                  r"nlohmann/|" + CUDA),
    "src/serve": (layer(r"diffattn/io/", r"serve/(?!engine/)", PRIVATE_IO, r"nlohmann/"), TORCH + "|kernels/"),
    "src/serve/engine": (layer(r"diffattn/(infer|nn|models|io)/", r"infer/prompt_score\.h", r"diffattn/ops", r"serve/",
                               PRIVATE_IO, TORCH),
                         r"kernels/|nlohmann/"),
    "src/analysis/report": (r"diffattn/(io|analysis)/|analysis/(report|picture)/|io/|nlohmann/", TORCH),
    "src/analysis/picture": (r"diffattn/(io|analysis)/|analysis/(report|picture)/|io/unicode/utf8\.h",
                             TORCH + "|nlohmann/"),
    "src/analysis/model": (layer(r"diffattn/(nn|io|analysis)/", r"diffattn/ops", r"analysis/", PRIVATE_NN,
                                 TORCH), r"kernels/|nlohmann/"),
    "src/train": (layer(r"diffattn/(nn|models|io|data|analysis|parallel|train)/", r"diffattn/ops", r"train/",
                        r"ops/layers/(float_product|fused_adamw|rounded_inputs)\.h", PRIVATE_NN, PRIVATE_IO,
                        PRIVATE_MODELS, TORCH, r"nlohmann/"), r"kernels/"),
    "src/compare": (layer(r"diffattn/(nn|models|io|data|train|analysis|parallel)/", r"diffattn/ops", r"compare/",
                          PRIVATE_NN, PRIVATE_IO, PRIVATE_MODELS, PRIVATE_TRAIN, TORCH, r"nlohmann/"),
                    r"kernels/"),
    "apps": (layer(PUBLIC_ONLY, r"apps/", PRIVATE_NN, PRIVATE_IO, PRIVATE_TRAIN, PRIVATE_COMPARE,
                   PRIVATE_SERVE, r"CLI/",
                   r"fmt/", r"nlohmann/", TORCH), r"(?!)"),
    "python": (layer(PUBLIC_ONLY, r"apps/", r"python/", r"io/stop_text\.h", r"nlohmann/", TORCH), r"(?!)"),
    "tests/kernels": (r"", TORCH),
    "tests/io": (r"", TORCH),
    "tests/analysis": (r"", TORCH),
    "tests/analysis/model": (r"", CUDA),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# asm("" ...) has no instruction: it keeps the compiler from moving a value.
ASSEMBLY = re.compile(r"\b(asm|__asm__)\b\s*(volatile|__volatile__)?\s*\((?!\"\")")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|Users|work|mnt)/\w")
OUTSIDE_PAGE = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bnew Function\b|\bfetch\(|"
                          r"XMLHttpRequest|WebSocket|sendBeacon|importScripts|https?://")
# Only terminal/print.h knows what is safe on a terminal, so every line of the program goes through it.
PRINTING = re.compile(r"\bfmt::print\(|\bstd::(cout|cerr)\s*<<|\b(f?printf|fputs|puts)\(")
# torch's header runs on one thread where it is compiled without OpenMP.
TORCH_LOOP = re.compile(r"\bat::parallel_for\(")
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
    elif '"' in line and allowed and not re.search(f"^({allowed}|{EVERY_LAYER})", name):
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
            if PRINTING.search(line) and path.startswith("apps/") and "/terminal/" not in path:
                problems.append(f"{path}:{number}: print with terminal/print.h")
            if TORCH_LOOP.search(line) and path != "src/ops/glue/threads.cpp":
                problems.append(f"{path}:{number}: at::parallel_for outside ops/glue/threads.cpp runs on one thread")
            if ASSEMBLY.search(line) and path.startswith("src/") and "/ptx/" not in path:
                problems.append(f"{path}:{number}: inline assembly outside ptx/")
        if suffix == ".js" and path.startswith(("viewer/", "src/serve/page/")):
            # The server's page talks to its own server; its Content Security Policy allows nothing else.
            own = line if path.startswith("viewer/") else line.replace("await fetch(path", "")
            check_script(path, number, own, problems)
        if MACHINE_PATH.search(line) and path != "tools/check_layers.py":
            problems.append(f"{path}:{number}: a path of one machine")


def files():
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        if path.is_file() and path.suffix in TEXTS and not SKIPPED & set(relative.parts):
            if not str(relative).startswith(FIXTURES):
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
