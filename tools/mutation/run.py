#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: how many small faults in the code do the tests notice?

  tools/mutation/run.py --every 8             builds the torch-free layers once, runs every eighth mutant
  tools/mutation/run.py --torch --files src/ops/glue/checks.cpp src/train/trainer.cpp --targets ops_tests train_tests

Copies the tree to WORK/tree, writes all mutants into the copy (mutants.py), builds it once and chooses a mutant
with DIFFATTN_MUTANT. A first run without a mutant records which tests reach which mutants; each mutant then runs
only those, the quickest first, until one fails. Prints the survivors and writes WORK/result.json.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
IO_FILES = ["src/io/**/*.cpp", "src/io/**/*.h"]
IO_TARGETS = ["io_tests", "tokenizer_tests", "convert_tests"]
TABLES = "_data.cpp"


def copy_tree(tree):
    shown = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True)
    for name in shown.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def mutate(tree, patterns):
    """Writes the mutants into the files of the tree and returns them."""
    found = []
    for name in sorted({path for pattern in patterns for path in tree.glob(pattern)}):
        if name.name.endswith(TABLES):
            continue
        file = mutants.File(str(name.relative_to(tree)), name.read_text(), len(found) + 1)
        name.write_text(file.mutated())
        found += file.mutants
    return found


def add_listener(tree, targets):
    """Adds listener.cpp to the sources of the test programs."""
    listener = tree / "tools" / "mutation" / "listener.cpp"
    for file in (tree / "tests").rglob("CMakeLists.txt"):
        text = file.read_text()
        for target in targets:
            if f"add_executable({target}\n" in text:
                text += (f"target_sources({target} PRIVATE {listener})\n"
                         f"set_source_files_properties({listener} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n")
        file.write_text(text)


def torch_options(torch):
    """The options of CMake that choose the torch of scripts/setup, or none."""
    toolchain = ROOT / "build" / "toolchain.mk"
    if not torch:
        return ["-DDIFFATTN_TORCH=OFF"]
    if not toolchain.exists():
        sys.exit("run scripts/setup first, which finds or installs torch")
    python = re.search(r"^PYTHON := (.*)$", toolchain.read_text(), re.M).group(1)
    return [f"-DDIFFATTN_PYTHON={python}"]


def build(tree, folder, targets, torch, jobs):
    options = torch_options(torch)
    subprocess.run(["cmake", "-G", "Ninja", "-S", tree, "-B", folder, "-DCMAKE_BUILD_TYPE=Debug", "-DDIFFATTN_CUDA=OFF",
                    f"-DCMAKE_CXX_FLAGS=-O1 -g0 -w -include {tree}/tools/mutation/switch.h", *options],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "-j", str(jobs), "--target", *targets], check=True)


@dataclasses.dataclass
class Test:
    program: pathlib.Path
    name: str
    milliseconds: int


def reached(folder, targets, longest):
    """Runs every test without a mutant. Returns the tests that reach each mutant, the quickest first."""
    tests = {}
    for target in targets:
        report = folder / f"{target}.reached"
        report.unlink(missing_ok=True)
        subprocess.run([folder / target, "--gtest_brief=1"], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, DIFFATTN_MUTATION_REPORT=str(report)))
        for line in report.read_text().splitlines():
            name, milliseconds, *ids = line.split()
            test = Test(folder / target, name, int(milliseconds))
            for id in ids if test.milliseconds <= 1000 * longest else []:
                tests.setdefault(int(id), []).append(test)
    for each in tests.values():
        each.sort(key=lambda test: test.milliseconds)
    return tests


def caught_by(mutant, tests):
    """Returns the test program and the way in which it noticed the mutant, or None."""
    for program in dict.fromkeys(test.program for test in tests):
        own = [test for test in tests if test.program == program]
        limit = 20 + 5 * sum(test.milliseconds for test in own) / 1000
        try:
            done = subprocess.run([program, "--gtest_brief=1", "--gtest_fail_fast",
                                   "--gtest_filter=" + ":".join(test.name for test in own)], timeout=limit,
                                  env=dict(os.environ, DIFFATTN_MUTANT=str(mutant.id)),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return f"{program.name}: time limit"
        if done.returncode != 0:
            return f"{program.name}: exit status {done.returncode}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", default=IO_FILES, help="patterns, relative to the root")
    parser.add_argument("--targets", nargs="+", default=IO_TARGETS, help="test programs")
    parser.add_argument("--torch", action="store_true", help="build the layers that need torch, too")
    parser.add_argument("--every", type=int, default=1, help="run every Nth mutant")
    parser.add_argument("--longest", type=float, default=2, help="leave out tests that take more seconds")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    work, begin = arguments.work.resolve(), time.monotonic()
    tree, folder = work / "tree", work / "build"
    copy_tree(tree)
    found = mutate(tree, arguments.files)
    add_listener(tree, arguments.targets)
    build(tree, folder, arguments.targets, arguments.torch, arguments.jobs)
    tests = reached(folder, arguments.targets, arguments.longest)
    chosen = found[::arguments.every]
    print(f"mutation: {len(found)} mutants, {len(chosen)} chosen", flush=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda mutant: caught_by(mutant, tests.get(mutant.id, [])), chosen))
    report(chosen, results, tests, work, time.monotonic() - begin)
    return 0


def report(chosen, results, tests, work, seconds):
    rows = [dataclasses.asdict(mutant) | {"caught": result, "tests": len(tests.get(mutant.id, []))}
            for mutant, result in zip(chosen, results)]
    (work / "result.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        if row["caught"] is None:
            reach = f"{row['tests']} tests reach it" if row["tests"] else "no test reaches it"
            print(f"survived {row['id']}: {row['file']}:{row['line']}: {row['change']}: {row['text']} ({reach})")
    caught = sum(row["caught"] is not None for row in rows)
    share = 100 * caught / max(1, len(rows))
    print(f"mutation: {caught} of {len(rows)} mutants caught ({share:.1f} %) in {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
