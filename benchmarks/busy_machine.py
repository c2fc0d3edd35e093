# SPDX-License-Identifier: Apache-2.0
"""Times the program alone and beside other busy processes, with several ways to wait.

    python3 benchmarks/busy_machine.py --program build/release/diffattn --busy 0,1 --rounds 3

`ours` is the program as it is. `libgomp` lets threads spin as long as GNU's OpenMP does without a
setting, and `passive` lets them sleep at once. The ways take turns in each round. Prints medians of
the seconds for a fixed amount of work, without the time to start the program. Run it on a machine
that does nothing else.
"""
import argparse
import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

WAYS = {"ours": {}, "libgomp": {"GOMP_SPINCOUNT": "300000"}, "passive": {"OMP_WAIT_POLICY": "passive"}}
ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/release/diffattn", type=pathlib.Path)
    parser.add_argument("--example", type=pathlib.Path, help="the built examples/cpp, timed as a whole")
    parser.add_argument("--what", default="train,attention,generate")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--busy", default="0,1", help="numbers of busy processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    return parser.parse_args()


def run(way, *command):
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    start = time.monotonic()
    result = subprocess.run([str(word) for word in command], env={**environment, **WAYS[way]}, cwd=ROOT,
                            capture_output=True, text=True, check=True)
    return result.stdout, time.monotonic() - start


def train(args, way):
    """Trains examples/language.toml on the documents of this repository."""
    with tempfile.TemporaryDirectory() as folder:
        run(way, args.program, "train", "--config", "examples/language.toml", "--out", folder + "/run", "--set",
            f"train.steps={args.steps}", "--set", "train.log_every=1", "--set", "train.eval_every=0", "--set",
            "train.peak_tflops=1")
        lines = pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return sum(8 * 256 / speed for speed in speeds)  # batch_size * seq_len tokens each


def attention(args, way):
    """Runs the fused operator forward and backward: 4 heads, 2048 tokens, causal, float32."""
    out, _ = run(way, args.program, "bench", "attention", "--seq", "2048", "--mask", "causal", "--dtype", "float32",
                 "--route", "fused", "--pass", "forward,backward", "--repeat", "10", "--json")
    return sum(milliseconds(out, "fused")) / 1e3


def generate(args, way):
    """Generates 64 tokens with a model of 20 M parameters."""
    out, _ = run(way, args.program, "bench", "generate", "--attention", "diffllama", "--new-tokens", "64", "--repeat",
                 "5", "--json")
    return sum(milliseconds(out, "diffllama")) / 1e3


def example(args, way):
    return run(way, args.example)[1]


def milliseconds(text, name):
    """Returns the medians of a route at all points of a JSON result of `bench`."""
    return [route["ms"] for point in json.loads(text)["points"] for route in point["routes"] if route["route"] == name]


def start_busy():
    """Starts a process that uses one core until it or this process ends."""
    def end_with_parent():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    return subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=end_with_parent)


def main():
    args = arguments()
    jobs = {name: globals()[name] for name in args.what.split(",")}
    if args.example:
        jobs["example"] = example
    ways = args.ways.split(",")
    print("work        " + "".join(f"{way:>12}" for way in ways) + "   busy processes, seconds")
    for busy in map(int, args.busy.split(",")):
        others = [start_busy() for _ in range(busy)]
        try:
            for name, job in jobs.items():
                times = {way: [] for way in ways}
                for _ in range(args.rounds):
                    for way in ways:
                        times[way].append(job(args, way))
                medians = "".join(f"{statistics.median(times[way]):>12.2f}" for way in ways)
                print(f"{name:<12}{medians}   {busy}", flush=True)
        finally:
            for process in others:
                process.kill()
                process.wait()
    print("load average at the end:", *os.getloadavg())


if __name__ == "__main__":
    main()
