# SPDX-License-Identifier: Apache-2.0
"""Starts jobs of several processes for tests, and compares their run folders."""
import ctypes
import importlib
import json
import multiprocessing
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

import torch

if not torch.distributed.is_available():
    print("skipped: this torch has no torch.distributed")
    raise SystemExit(77)  # ctest shows it as skipped

RUN = """task = "recall"
seed = 5
[model]
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
[recall]
pairs = 4
distractors = 8
[train]
steps = 20
batch_size = 8
seq_len = 64
learning_rate = 3e-3
schedule = "constant"
warmup_steps = 1
log_every = 1
eval_every = 10
eval_batches = 2
checkpoint_every = 10
"""
PROGRAM = [sys.executable, "-m", "diffattn"]
ENDED = "another process has ended"
TRAIN = [*PROGRAM, "train"]
from diffattn import _full  # noqa: E402

torch.set_num_threads(1)  # a process with threads of OpenMP must not fork

#: A busy machine may need minutes to start all processes of a job.
PATIENCE = 600
WAIT = 300
_PORTS = range(15000, 32000)  # below those that Linux gives to connections


def _free_ports():
    """Yields ports that nobody listens at, different ones in parallel tests."""
    at = os.getpid() * 61
    while True:
        at += 1
        port = _PORTS[at % len(_PORTS)]
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_ports = _free_ports()


def free_port():
    return str(next(_ports))


def environment(rank, size, port):
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DIFFATTN_TIMEOUT": str(PATIENCE)}


def weights_of(folder):
    """Returns the float32 tensors of a model folder by name, flat."""
    data = (folder / "model" / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(bytearray(data[begin + tensor["data_offsets"][0]:begin + tensor["data_offsets"][1]]),
                                   dtype=torch.float32) for name, tensor in header.items()}


class Forked:
    """`python -m diffattn` with some words, forked from the test. It has what subprocess.Popen has.

    A process that starts from nothing spends most of its time on loading torch and, when it first fills a tensor
    without data, torch._dynamo.
    """
    def __init__(self, words, variables):
        importlib.import_module("torch._dynamo")
        _full.library()
        self._texts = [tempfile.TemporaryFile() for _ in range(2)]
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(words, variables))
        self._process.start()
        self.pid = self._process.pid

    def _run(self, words, variables):
        for number, text in enumerate(self._texts, start=1):
            os.dup2(text.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["diffattn", *words]
        code = 0
        try:
            runpy.run_module("diffattn", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            code = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        if "DIFFATTN_COVERAGE" in os.environ:
            ctypes.CDLL(None).exit(code)  # so that libraries write their counts, which takes long
        os._exit(code)

    @property
    def returncode(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("python -m diffattn", timeout)

    def communicate(self, timeout=None):
        self.wait(timeout)
        for text in self._texts:
            text.seek(0)
        return tuple(text.read().decode() for text in self._texts)

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def end(self):
        self.send_signal(signal.SIGKILL)
        self.wait()
        for text in self._texts:
            text.close()


class Jobs(unittest.TestCase):
    """A test with a folder, a run file in it, and processes that end with the test."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.file = self.folder / "run.toml"
        self.file.write_text(RUN)

    def popen(self, command, **more):
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
        self.addCleanup(self.end, process)
        return process

    def launch(self, command, variables):
        """Starts a command. Forks it from this process if it is `python -m diffattn` without libraries to preload."""
        if command[:len(PROGRAM)] != PROGRAM or "LD_PRELOAD" in variables:
            return self.popen(command, env=variables)
        process = Forked(command[len(PROGRAM):], variables)
        self.addCleanup(process.end)
        return process

    def end(self, process):
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()

    def start(self, size, words_of, command=TRAIN, ranks=None, port=None, prefix_of=lambda rank: [], **variables):
        """Starts `size` processes, or only some `ranks`; words_of(rank) are the words behind the command."""
        port = port or free_port()
        return [self.launch([*prefix_of(rank), *command, *words_of(rank)],
                            {**environment(rank, size, port), **variables})
                for rank in ranks or range(size)]

    def finish(self, processes):
        return [(process.returncode, *texts) for process, texts in
                [(process, process.communicate(timeout=PATIENCE)) for process in processes]]

    def alone(self, *words):
        """Starts `train` as a single process."""
        return self.launch([*TRAIN, *words], {**os.environ, "OMP_NUM_THREADS": "1"})

    def train(self, name, size, *settings, resume=False):
        """Trains into folder `name` and returns it."""
        out = self.folder / name
        words = ["--resume", str(out)] if resume else ["--config", str(self.file), "--out", str(out)]
        for setting in settings:
            words += ["--set", setting]
        if size == 1:
            results = self.finish([self.alone(*words)])
        else:
            results = self.finish(self.start(size, lambda rank: words))
        for rank, (code, out_text, error) in enumerate(results):
            self.assertEqual(code, 0, f"rank {rank} of {size}: {error}")
            if rank > 0:
                self.assertEqual(out_text, "", "only rank 0 prints")
        return out

    def metrics(self, folder):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found = {}
        for line in lines:
            found.setdefault(line["step"], {}).update(line)
        return found

    def assert_same_course(self, got, want, tolerance=1e-6):
        got, want = self.metrics(got), self.metrics(want)
        self.assertEqual(got.keys(), want.keys())
        for step in want:
            for key in ("loss", "gradient_norm", "valid_loss", "tokens"):
                if key in want[step]:
                    bound = tolerance * (10 if key == "gradient_norm" else 1)
                    self.assertAlmostEqual(got[step][key] / want[step][key], 1, delta=bound, msg=f"{key}, step {step}")

    def assert_same_bits(self, got, want):
        got, want = self.metrics(got), self.metrics(want)
        self.assertEqual(got.keys(), want.keys())
        for step in want:
            for key in ("loss", "gradient_norm", "valid_loss"):
                self.assertEqual(got[step].get(key), want[step].get(key), f"{key}, step {step}")

    def write_examples(self, task, options):
        """Makes the run read texts of several lengths with a rare class and a frequent one, or with summaries."""
        lines = []
        for i in range(200):
            text = " ".join(str(n * n) for n in range(i, i + 3 + i % 9))[:60]
            example = {"text": text, "label": "rare" if i % 7 == 0 else "frequent"}
            if task == "summarize":
                example = {"document": text, "summary": text[:i % 11 + 1]}
            lines.append(json.dumps(example))
        (self.folder / "examples.jsonl").write_text("\n".join(lines) + "\n")
        begin = RUN.replace('task = "recall"', f'task = "{task}"').split("[recall]")[0]
        self.file.write_text(f"{begin}[data]\ntrain = \"{self.folder}/examples.jsonl\"\n[{task}]\n{options}\n[train]" +
                             RUN.split("[train]")[1])

    def write_text(self):
        """Makes the run read short documents, which share the rows of a batch."""
        text = "".join(json.dumps({"text": " ".join(str(n * n) for n in range(i, i + 3 + i % 40))}) + "\n"
                       for i in range(300))
        (self.folder / "text.jsonl").write_text(text)
        lines = RUN.replace('task = "recall"', 'task = "lm"').split("[recall]")[0]
        self.file.write_text(f"{lines}[data]\ntrain = \"{self.folder}/text.jsonl\"\n[train]" + RUN.split("[train]")[1])

    def wait_until(self, condition, failure):
        deadline = time.monotonic() + WAIT
        while not condition():
            self.assertLess(time.monotonic(), deadline, failure)
            time.sleep(0.1)

    def wait_for(self, path):
        self.wait_until(path.exists, f"{path} did not appear")
