#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Hugging Face's DiffLlama with and without diffattn.hf.accelerate, and an equal-size Llama.

    python benchmarks/hf_diffllama.py                    # on this machine's CPU
    python benchmarks/hf_diffllama.py --device cuda      # 374 M parameters under torch.compile
    python benchmarks/hf_diffllama.py --device cuda --program build/release/diffattn

Each row of the table times all models in turn, for several rounds, and prints medians. `ratio` is
the speed-up over the fastest attention implementation of transformers in that row. On a CPU with
one thread we measure processor time, which other programs hardly disturb. On a GPU each model runs
in its own process, so that they compile in parallel; only one of them computes at a time. --program
adds the step of our own trainer, which takes its turn before, between and after the others.
"""
import argparse
import dataclasses
import json
import multiprocessing
import platform
import statistics
import subprocess
import sys
import time
from typing import Dict, List, Optional

SMALL = dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=8, vocab_size=4096)
LARGE = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16,
            num_key_value_heads=16, vocab_size=32000)
NEW_TOKENS = 64
FUSED, SDPA, EAGER = "DiffLlama + diffattn", "DiffLlama sdpa", "DiffLlama eager"
LLAMA, OURS = "Llama sdpa", "diffattn bench step"


@dataclasses.dataclass
class Row:
    what: str  # "train", "prefill" or "generate" (a prompt of `seq` tokens and 64 new ones)
    seq: int
    batch: int
    dtype: str
    device: str
    compiled: bool

    def title(self) -> str:
        return f"{self.what} N={self.seq} B={self.batch} {self.dtype}"


class Runner:
    """A model that runs training steps or prefills."""

    def __init__(self, name: str, row: Row):
        import torch
        from transformers import (DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig,
                                  LlamaForCausalLM)
        sizes = LARGE if row.device == "cuda" else SMALL
        kind = (LlamaConfig, LlamaForCausalLM) if name == LLAMA else (DiffLlamaConfig,
                                                                      DiffLlamaForCausalLM)
        config = kind[0](max_position_embeddings=row.seq + NEW_TOKENS, tie_word_embeddings=False, eos_token_id=None,
                         pad_token_id=0, **sizes)
        config._attn_implementation = "eager" if name == EAGER else "sdpa"
        torch.manual_seed(0)
        self.model = kind[1](config).to(row.device, getattr(torch, row.dtype))
        if name == FUSED:
            import diffattn.hf
            diffattn.hf.accelerate(self.model)
        self.row, self.torch = row, torch
        self.call = torch.compile(self.model) if row.compiled else self.model
        self.ids = torch.randint(0, sizes["vocab_size"], (row.batch, row.seq), device=row.device)
        if row.what == "train":
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self) -> None:
        if self.row.what == "generate":
            self.model.generate(self.ids, attention_mask=self.torch.ones_like(self.ids), do_sample=False,
                                max_new_tokens=NEW_TOKENS)
            return
        if self.row.what == "prefill":
            with self.torch.inference_mode():
                self.call(input_ids=self.ids, use_cache=True, logits_to_keep=1)
            return
        self.call(input_ids=self.ids, labels=self.ids, use_cache=False).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def wait(self) -> None:
        if self.row.device == "cuda":
            self.torch.cuda.synchronize()

    def seconds(self, steps: int) -> float:
        """Returns the average time of a step over `steps` steps."""
        alone = self.row.device == "cpu" and self.torch.get_num_threads() == 1
        clock = time.process_time if alone else time.perf_counter
        self.wait()
        begin = clock()
        for _ in range(steps):
            self.step()
        self.wait()
        return (clock() - begin) / steps

    def peak_gib(self) -> float:
        return self.torch.cuda.max_memory_allocated() / 2**30 if self.row.device == "cuda" else 0.0


def serve(pipe, name: str, row: Row, warmups: int) -> None:
    """Serves a Runner in its own process: sends "ready", then a time for each number of steps."""
    try:
        runner = Runner(name, row)
        begin = time.perf_counter()
        runner.seconds(warmups)
        runner.torch.cuda.empty_cache()  # frees memory for the other processes
        pipe.send(("ready", time.perf_counter() - begin))
        while (steps := pipe.recv()) is not None:
            runner.seconds(1)
            pipe.send(("seconds", runner.seconds(steps), runner.peak_gib()))
            runner.torch.cuda.empty_cache()
    except Exception as error:  # the parent process reports it
        pipe.send(("error", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"))


class Remote:
    def __init__(self, name: str, row: Row, warmups: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, row, warmups), daemon=True)
        self.process.start()
        self.name, self.gib = name, 0.0

    def answer(self, timeout: Optional[float] = None):
        if not self.pipe.poll(timeout):
            self.process.kill()
            raise RuntimeError(f"{self.name}: not compiled in time (see --wait)")
        message = self.pipe.recv()
        if message[0] == "error":
            raise RuntimeError(f"{self.name}: {message[1]}")
        return message

    def seconds(self, steps: int) -> float:
        self.pipe.send(steps)
        _, seconds, self.gib = self.answer()
        return seconds

    def stop(self) -> None:
        self.pipe.send(None)
        self.process.join()


class Program:
    """`diffattn bench step` of the same model and batch: float32 master weights, products in bfloat16."""

    def __init__(self, path: str, row: Row):
        sizes = dict(hidden=LARGE["hidden_size"], intermediate=LARGE["intermediate_size"],
                     layers=LARGE["num_hidden_layers"], heads=LARGE["num_attention_heads"],
                     vocab=LARGE["vocab_size"], batch=row.batch, seq=row.seq)
        self.command = [path, "bench", "step", "--json", "--device", "cuda", "--dtype", row.dtype,
                        "--attention", "diffllama", "--repeat", "6"]
        for name, value in sizes.items():
            self.command += [f"--{name}", str(value)]
        self.gib = 0.0

    def seconds(self, steps: int) -> float:
        done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        route = json.loads(done.stdout)["points"][0]["routes"][0]
        self.gib = route["peak_memory_mib"] / 1024
        return route["ms"] / 1e3

    def stop(self) -> None:
        pass


def rounds(runners: Dict[str, object], count: int, steps: int) -> Dict[str, List[float]]:
    times: Dict[str, List[float]] = {name: [] for name in runners}
    for _ in range(count):
        for name, runner in runners.items():
            times[name].append(runner.seconds(steps))
    return times


def report(row: Row, times: Dict[str, List[float]], as_json: bool, gib: Dict[str, float]) -> None:
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    others = [medians[name] for name in (SDPA, EAGER) if name in medians]
    for name, samples in times.items():
        ratio = min(others) / medians[name] if others else float("nan")
        spread = (max(samples) - min(samples)) / medians[name]
        tokens = row.batch * (NEW_TOKENS if row.what == "generate" else row.seq) / medians[name]
        if as_json:
            print(json.dumps(dict(row=row.title(), model=name, compiled=row.compiled,
                                  ms=round(medians[name] * 1e3, 2), tokens_per_s=round(tokens),
                                  ratio=round(ratio, 3), spread=round(spread, 3),
                                  gib=round(gib.get(name, 0.0), 1),
                                  samples=[round(sample * 1e3, 2) for sample in samples])), flush=True)
        else:
            memory = f"  {gib[name]:5.1f} GiB" if gib.get(name) else ""
            print(f"  {row.title():34s} {name:22s} {medians[name] * 1e3:9.1f} ms "
                  f"{tokens:9.0f} tok/s  {ratio:5.2f} x  spread {spread:4.0%}{memory}", flush=True)
    if OURS in medians and FUSED in medians:
        print(f"# {row.title()}: {OURS} is {medians[FUSED] / medians[OURS]:.3f} x as fast as {FUSED}", flush=True)


def chosen(options: argparse.Namespace, names: List[str]) -> List[str]:
    wanted = options.models.split(",") if options.models else [""]
    return [name for name in names if any(part in name for part in wanted)]


def on_cpu(options: argparse.Namespace) -> None:
    names = chosen(options, [FUSED, SDPA, EAGER, LLAMA])
    for what, seq, dtype in [("train", 1024, "float32"), ("train", 2048, "float32"),
                             ("train", 1024, "bfloat16"), ("train", 2048, "bfloat16"),
                             ("prefill", 2048, "float32"), ("prefill", 2048, "bfloat16"),
                             ("generate", 1024, "float32"), ("generate", 2048, "float32")]:
        row = Row(what, seq, 1, dtype, "cpu", compiled=False)
        if options.only and options.only not in row.title():
            continue
        runners = {name: Runner(name, row) for name in names}
        rounds(runners, 1, 1)
        report(row, rounds(runners, options.rounds, 1), options.json, {})


def on_cuda(options: argparse.Namespace) -> None:
    begin = time.perf_counter()
    rows = [Row("train", seq, batch, "bfloat16", "cuda", compiled=not options.eager)
            for seq, batch in ((16384, 1), (2048, 8))]
    rows = [row for row in rows if not options.only or options.only in row.title()]
    names = chosen(options, [FUSED, SDPA, LLAMA])
    remotes = [(row, {name: Remote(name, row, warmups=3) for name in names}) for row in rows]
    ready = []
    for row, starting in remotes:
        ready.append((row, {}))
        for name, remote in starting.items():
            try:
                remote.answer(max(1.0, options.wait - (time.perf_counter() - begin)))
                ready[-1][1][name] = remote
                print(f"# {row.title()}, {name}: ready after {time.perf_counter() - begin:.0f} s",
                      file=sys.stderr, flush=True)
            except (RuntimeError, EOFError) as error:
                print(f"# {row.title()}: skipped: {error}", file=sys.stderr, flush=True)
    for row, runners in ready:
        if options.program:
            program = runners[OURS] = Program(options.program, row)
            ours = [program.seconds(4)]
        times = rounds(runners, options.rounds, 4)
        if options.program:
            times[OURS] += ours
        report(row, times, options.json, {name: runner.gib for name, runner in runners.items()})
        for runner in runners.values():
            runner.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--program", help="on a GPU: also time the training step of this program")
    parser.add_argument("--rounds", type=int, default=5, help="how often to time each model")
    parser.add_argument("--only", help="run only rows whose title contains this text")
    parser.add_argument("--models", help="run only models whose name contains one of these parts, "
                        "such as diffattn,sdpa")
    parser.add_argument("--wait", type=float, default=600,
                        help="on a GPU: skip models that are not compiled after this many seconds")
    parser.add_argument("--eager", action="store_true", help="on a GPU: do not use torch.compile")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    import torch
    import transformers
    where = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    print(f"# torch {torch.__version__}, transformers {transformers.__version__}, {options.device} "
          f"{where}, {torch.get_num_threads()} threads", file=sys.stderr, flush=True)
    (on_cuda if options.device == "cuda" else on_cpu)(options)


if __name__ == "__main__":
    main()
