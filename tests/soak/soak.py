#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains for many steps and generates many tokens, and fails if memory or open files grow.

    tests/soak/soak.py build/release/diffattn --steps 10000 --tokens 100000

It samples the resident memory and the open files of the process. After a warm-up of a fifth of the
samples, a line is fitted to the rest; its rise over the whole time must stay below --growth MiB.
"""
import argparse
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

RUN_FILE = """
task = "lm"
[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
[data]
train = "{corpus}"
[train]
steps = {steps}
batch_size = 2
seq_len = 32
log_every = 10
eval_every = 500
eval_batches = 2
stats_every = 1000
checkpoint_every = 250
"""
INTERVAL = 0.25  # seconds between two samples
TOKENS_OF_A_TEXT = 100


def sample(process):
    """Returns resident MiB and the number of open files, or None if the process has ended."""
    try:
        pages = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        files = len(os.listdir(f"/proc/{process.pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (pages * os.sysconf("SC_PAGESIZE") / 2**20, files) if pages > 0 else None


def watch(name, arguments, output, growth):
    """Runs a command to its end. Prints what it took, and returns True if nothing grew."""
    start = time.monotonic()
    samples = []
    with open(output, "wb") as sink:
        process = subprocess.Popen(arguments, stdout=sink, stderr=subprocess.STDOUT)
        while process.poll() is None:
            values = sample(process)
            if values:
                samples.append((time.monotonic() - start, *values))
            time.sleep(INTERVAL)
    if process.returncode != 0 or len(samples) < 20:
        print(f"{name}: exit code {process.returncode} after {len(samples)} samples; see {output}")
        return False
    times, memory, files = zip(*samples[len(samples) // 5:], strict=True)
    rise = statistics.linear_regression(times, memory).slope * (times[-1] - times[0])
    tenth = max(1, len(files) // 10)
    more_files = statistics.median(files[-tenth:]) - statistics.median(files[:tenth])
    print(f"{name}: {times[-1]:.0f} s, {len(samples)} samples; memory {memory[0]:.1f} MiB after the warm-up, "
          f"{memory[-1]:.1f} MiB at the end, fitted rise {rise:+.2f} MiB; open files {files[0]} and "
          f"{files[-1]}, median change {more_files:+.0f}")
    return rise < growth and more_files <= 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--tokens", type=int, default=100000)
    parser.add_argument("--growth", type=float, default=4.0, help="largest rise in MiB (default 4)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        generator = random.Random(1)
        words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
        (folder / "corpus.txt").write_text(" ".join(generator.choice(words) for _ in range(20000)))
        (folder / "run.toml").write_text(RUN_FILE.format(corpus=folder / "corpus.txt", steps=options.steps))
        steady = watch(f"{options.steps} training steps",
                       [options.program, "train", "--config", folder / "run.toml", "--out", folder / "run"],
                       folder / "train.log", options.growth)
        if not steady:
            return 1
        texts = -(-options.tokens // TOKENS_OF_A_TEXT)
        steady = watch(f"{texts * TOKENS_OF_A_TEXT} generated tokens",
                       [options.program, "bench", "generate", "--attention", "diffllama", "--hidden", "64",
                        "--intermediate", "128", "--layers", "2", "--heads", "2", "--vocab", "256", "--prompt",
                        "16", "--new-tokens", str(TOKENS_OF_A_TEXT), "--repeat", str(texts)],
                       folder / "generate.log", options.growth)
        return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
