#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets of tests/fuzz, several at once, and counts their inputs.

  tools/fuzz.py --build build/fuzz --seconds 10              ten seconds for each target
  tools/fuzz.py --build build/fuzz --inputs 50000000         until the targets have run as many inputs in all
  tools/fuzz.py --build build/fuzz --campaign 3600           one hour, every target for as long as the others
  tools/fuzz.py --build build/fuzz tokenizer --seconds 60    one target

New inputs that reach more code stay in BUILD/corpus/TARGET and are used again. An input that crashes, hangs
or takes too much memory is written to BUILD/found; keep it in tests/fuzz/found/TARGET once it is fixed.
BUILD/counts.json adds up the inputs of all runs. Exits 1 if a target fails.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ = ROOT / "tests" / "fuzz"
# SECURITY.md allows one allocation of 64 MiB and twice the file. The inputs are small.
MEMORY_LIMITS = ["-malloc_limit_mb=80", "-rss_limit_mb=2048"]
SECONDS_LIMIT = 10  # for one input
# libFuzzer weighs inputs by the rarity of what they reach. With targets of many branches that takes up to two
# thirds of the time, and the targets find more without it.
PLAIN_SCHEDULE = "-entropic=0"
# A small quarantine stays in the cache, and short stack traces of allocations suffice: running a failing input
# again (build/fuzz/fuzz_NAME FILE) shows long ones.
SANITIZER = "detect_leaks=1:allocator_may_return_null=1:quarantine_size_mb=8:malloc_context_size=4"
# Longer inputs find little more and run slowly.
LENGTHS = {"tokenizer": 8192, "convert": 8192, "chat_template": 4096, "sharded": 4096, "text": 512, "json": 512,
           "settings": 512, "token_file": 512}
# A campaign gives all targets turns of this length. Each turn first runs the corpus.
TURN_SECONDS, SHORTEST_TURN = 60, 5


def targets():
    return sorted(path.name.removesuffix("_fuzz.cpp") for path in FUZZ.glob("*_fuzz.cpp"))


def command_of(build, target, seconds):
    corpus, found = build / "corpus" / target, build / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    folders = [corpus] + [FUZZ / kind / target for kind in ("seeds", "found")]
    command = [build / f"fuzz_{target}", *MEMORY_LIMITS, f"-timeout={SECONDS_LIMIT}", PLAIN_SCHEDULE,
               f"-max_total_time={seconds}", "-print_final_stats=1", f"-max_len={LENGTHS.get(target, 1024)}",
               f"-artifact_prefix={found}/{target}-"]
    dictionary = FUZZ / "dictionaries" / f"{target}.dict"
    if dictionary.exists():
        command.append(f"-dict={dictionary}")
    return [str(part) for part in command + [folder for folder in folders if folder.is_dir()]]


def start(command, **kwargs):
    environment = dict(os.environ, ASAN_OPTIONS=SANITIZER, UBSAN_OPTIONS="print_stacktrace=1")
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          errors="replace", **kwargs)


def only_waited(build, target, log):
    """Deletes the input of a timeout and returns True if it runs in time by itself, in processor time.

    libFuzzer measures the wall clock. On a busy machine a process may wait for that long.
    """
    written = re.search(r"Test unit written to (.+)", log)
    if "SUMMARY: libFuzzer: timeout" not in log or not written:
        return False
    file = pathlib.Path(written.group(1))
    limit = (SECONDS_LIMIT, SECONDS_LIMIT)
    try:
        again = start([str(build / f"fuzz_{target}"), *MEMORY_LIMITS, "-timeout=0", str(file)],
                      timeout=100 * SECONDS_LIMIT,  # for an input that waits for ever without computing
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit))
    except subprocess.TimeoutExpired:
        return False
    if again.returncode == 0:
        file.unlink()
    return again.returncode == 0


def run(build, target, seconds):
    """Returns the target, the number of inputs it ran, and the log of a failure or None."""
    done = start(command_of(build, target, seconds))
    stat = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    count = int(stat.group(1)) if stat else 0
    failed = done.returncode != 0 and not only_waited(build, target, done.stderr)
    return target, count, done.stderr[-6000:] if failed else None


def turns(names, arguments, counts, failures):
    """Yields (target, seconds): every target once, or in turns until the campaign has its inputs or its time.

    A target that failed gets no further turn.
    """
    if not arguments.inputs and not arguments.campaign:
        yield from ((name, arguments.seconds or 10) for name in names)
        return
    end = time.monotonic() + (arguments.campaign or float("inf"))
    for name in itertools.cycle(names):
        left = end - time.monotonic()
        enough = arguments.inputs and sum(counts.values()) >= arguments.inputs
        if left < SHORTEST_TURN or enough or len(failures) == len(names):
            return
        if name not in failures:
            yield name, int(min(arguments.seconds or TURN_SECONDS, left))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "fuzz", help="folder of the programs")
    parser.add_argument("--seconds", type=int, help="for each target, or for each turn of a campaign")
    parser.add_argument("--inputs", type=int, help="stop after this many inputs of all targets together")
    parser.add_argument("--campaign", type=int, metavar="SECONDS", help="take turns for as long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at the same time")
    arguments = parser.parse_args()
    names = arguments.targets or targets()
    unknown = sorted(set(names) - set(targets()))
    if unknown:
        parser.error(f"unknown target {unknown[0]}; known: {', '.join(targets())}")
    build = arguments.build.resolve()
    counts, failures, begin = dict.fromkeys(names, 0), {}, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        running = set()
        for name, limit in turns(names, arguments, counts, failures):
            running.add(pool.submit(run, build, name, limit))
            if len(running) >= max(1, arguments.jobs):
                done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                take(done, build, counts, failures)
        take(concurrent.futures.wait(running).done, build, counts, failures)
    for name in names:
        print(f"fuzz: {name:12} {counts[name]:>12,} inputs{'  FAILED' if name in failures else ''}")
    print(f"fuzz: {sum(counts.values()):,} inputs in {time.monotonic() - begin:.0f} s, {len(failures)} failures")
    for name, log in failures.items():
        print(f"\n{name}:\n{log}")
    return 1 if failures else 0


def take(done, build, counts, failures):
    """Adds finished runs to the counts, in memory and in counts.json."""
    path = build / "counts.json"
    total = json.loads(path.read_text()) if path.exists() else {}
    for future in done:
        name, count, log = future.result()
        counts[name] += count
        total[name] = total.get(name, 0) + count
        if log is not None:
            failures[name] = log
    path.write_text(json.dumps(total, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
