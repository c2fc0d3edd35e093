# SPDX-License-Identifier: Apache-2.0
"""Measures memory and time of training steps of several Gloo processes on this machine.

    PYTHONPATH=python DIFFATTN_LIBRARY=build/release/libdiffattn.so python3 benchmarks/distributed.py memory
    PYTHONPATH=python DIFFATTN_LIBRARY=build/release/libdiffattn.so python3 benchmarks/distributed.py time

`memory` prints the largest peak resident memory of a process for every `train.shard` and number of processes, and that
of a tiny model. `time` compares the time of an update of two processes with the formula of docs/distributed.md: T is
the time of an update of two processes that do not communicate, G and W are the times of the sums of gradients and of
the gathers of parameters alone. The measurements take turns, and `time` prints their medians. It also prints the
processor time per process, which other programs of a busy machine change less.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

SHARDS = ("none", "optimizer", "gradients", "parameters")
BUCKET = 4 << 20  # elements, as in src/train/data_parallel.cpp
ALONE = "alone"  # a shard: processes that do not communicate


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["memory", "time", "collectives"])
    parser.add_argument("--processes", default="1,2,4", help="memory: numbers of processes")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="rows of an update of all processes")
    parser.add_argument("--rounds", type=int, default=5, help="time: rounds of measurements")
    parser.add_argument("--parameters", type=int, help="collectives: number of elements to sum and gather")
    return parser.parse_args()


def words(a, hidden, layers, batch, shard, repeat):
    sizes = {"--attention": "diffllama", "--hidden": hidden, "--intermediate": hidden * 11 // 4, "--layers": layers,
             "--heads": max(2, hidden // 64), "--vocab": 256, "--seq": a.seq, "--batch": batch, "--repeat": repeat,
             "--threads": 1, "--shard": shard}
    return ["bench", "step", "--json", *[str(word) for option in sizes.items() for word in option]]


def run(command, size, together=True):
    """Runs `size` processes in parallel, as one job or independently.

    Returns the output of the first, the peak memories in MiB and the mean processor time in ms.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    running = []
    with tempfile.TemporaryFile("w+") as out:
        for rank in range(size):
            job = dict(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **(job if together and size > 1 else {})}
            running.append(subprocess.Popen([sys.executable, *command], env=environment,
                                            stdout=out if rank == 0 else subprocess.DEVNULL))
        peaks, busy = [], []
        for process in running:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            peaks.append(usage.ru_maxrss / 1024)
            busy.append(1e3 * (usage.ru_utime + usage.ru_stime))
        if any(process.returncode for process in running):
            raise SystemExit(f"failed: {' '.join(command)}")
        out.seek(0)
        return out.read(), peaks, statistics.mean(busy)


def step(a, hidden, layers, batch, shard, size, repeat=3):
    """Returns the ms of an update, the peak memories and the processor time of all updates and the start."""
    alone = shard == ALONE
    # In one process "gradients" only returns freed memory to Linux, as in several.
    verb = words(a, hidden, layers, batch, "gradients" if alone else shard, repeat)
    text, peaks, busy = run(["-m", "diffattn", *verb], size, together=not alone)
    return json.loads(text)["points"][0]["routes"][0]["ms"], peaks, busy


def times(a, batch, shard):
    """Returns the ms of an update of two processes, and its processor time."""
    few, many = 1, 7
    before = step(a, a.hidden, a.layers, batch, shard, 2, few)
    after = step(a, a.hidden, a.layers, batch, shard, 2, many)
    return after[0], (after[2] - before[2]) / (many - few)


def parameters_of(a):
    matrices = 4 * a.hidden ** 2 + 3 * a.hidden * (a.hidden * 11 // 4)
    return a.layers * matrices


def memory(a):
    sizes = [int(size) for size in a.processes.split(",")]
    print(f"{parameters_of(a) / 1e6:.0f} million parameters in matrices of layers, MiB per process")
    print("| `train.shard` | " + " | ".join(f"{size} process{'es' if size > 1 else ''}" for size in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for shard in SHARDS:
        peaks = [max(step(a, a.hidden, a.layers, a.batch, shard, size)[1]) for size in sizes]
        print(f"| `{shard}` | " + " | ".join(f"{peak:,.0f}" for peak in peaks) + " |", flush=True)
    peaks = [max(step(a, 64, 1, a.batch, "none", size)[1]) for size in sizes]
    print("| a model of 64 × 1 layers | " + " | ".join(f"{peak:,.0f}" for peak in peaks) + " |")


def collectives(a):
    """Prints the ms in which this process sums gradients in parts, and those in which it gathers parameters."""
    import torch
    import torch.distributed as dist
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has new names, which 2.11 does not have yet
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    found = {"G": [], "W": []}
    for _ in range(4):
        for name, results in found.items():
            dist.barrier()
            begin = time.perf_counter(), time.process_time()
            for start in range(0, a.parameters, BUCKET):
                whole = torch.zeros((min(BUCKET, a.parameters - start) // size) * size)
                part = torch.zeros(whole.numel() // size)
                if name == "G":
                    dist.reduce_scatter_tensor(part, whole)
                else:
                    dist.all_gather_into_tensor(whole, part)
            results.append([1e3 * (time.perf_counter() - begin[0]), 1e3 * (time.process_time() - begin[1])])
    if dist.get_rank() == 0:
        medians = {name: [statistics.median(column) for column in zip(*results[1:])] for name, results in found.items()}
        print(json.dumps(medians), flush=True)
    dist.barrier()
    os._exit(0)


def measure_time(a):
    found = {"T": [], "G": [], "W": [], "update": []}
    loads = []
    for _ in range(a.rounds):
        found["T"].append(times(a, a.batch // 2, ALONE))
        group = run([__file__, "collectives", "--parameters", str(parameters_of(a))], 2)[0]
        for name, ms in json.loads(group).items():
            found[name].append(ms)
        found["update"].append(times(a, a.batch, "gradients"))
        loads.append(os.getloadavg()[0])
        print({name: [round(ms) for ms in values[-1]] for name, values in found.items()}, f"load {loads[-1]:.1f}",
              file=sys.stderr)
    print(f"{parameters_of(a) / 1e6:.0f} million parameters, {a.batch} rows of {a.seq} tokens, ms; "
          f"load {min(loads):.1f} to {max(loads):.1f} of {os.cpu_count()} cores")
    print("| | T | G | W | T + max(0, G - 2 T / 3) + W | T + G + W | measured |\n|---|---|---|---|---|---|---|")
    for column, kind in enumerate(("time", "processor time")):
        t, g, w, update = (statistics.median(ms[column] for ms in found[name]) for name in found)
        print(f"| {kind} | {t:.0f} | {g:.0f} | {w:.0f} | {t + max(0, g - 2 * t / 3) + w:.0f} | {t + g + w:.0f} | "
              f"{update:.0f} |")


if __name__ == "__main__":
    given = arguments()
    {"memory": memory, "time": measure_time, "collectives": collectives}[given.what](given)
