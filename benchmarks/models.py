# SPDX-License-Identifier: Apache-2.0
"""Compares training steps and generation of diffattn with Hugging Face transformers.

    .venv/bin/python benchmarks/models.py --program build/release/diffattn --threads 2

All models have the same configuration. In each round the program runs its own `bench step` or
`bench generate`, then each peer runs in this process (DiffLlama and Llama, eager and compiled), so
that other load on the machine affects all of them alike. Prints medians over all rounds and ratios;
with --json, one JSON object.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

FAMILIES = {"DiffLlama": (DiffLlamaConfig, DiffLlamaForCausalLM), "Llama": (LlamaConfig, LlamaForCausalLM)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/diffattn")
    parser.add_argument("--what", default="step,generate")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--intermediate", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="steps of each model per round")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--attention", default="diffllama,transformer",
                        help="attention variants of diffattn")
    parser.add_argument("--cores", help="after compilation, run only on these cores, such as 0,1")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def make_model(family, a):
    config_class, model_class = FAMILIES[family]
    config = config_class(vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.intermediate,
                          num_hidden_layers=a.layers, num_attention_heads=a.heads,
                          num_key_value_heads=a.heads, tie_word_embeddings=False,
                          max_position_embeddings=max(a.seq, a.prompt + a.new_tokens),
                          bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return model_class(config)


class Stepper:
    """A training step as in `diffattn train`: forward, loss, backward, clipping, fused AdamW."""

    def __init__(self, family, compiled, a):
        self.model = make_model(family, a).train()
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=True)
        self.ids = torch.randint(0, a.vocab, (a.batch, a.seq))
        self.step()  # compiles and warms up the allocator

    def step(self):
        start = time.perf_counter()
        self.run(input_ids=self.ids, labels=self.ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start


class Generator:
    def __init__(self, family, a):
        self.model = make_model(family, a).eval()
        self.ids = torch.randint(0, a.vocab, (a.batch, a.prompt))
        self.new_tokens = a.new_tokens
        self.step()

    def step(self):
        start = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(self.ids, attention_mask=torch.ones_like(self.ids),
                                      max_new_tokens=self.new_tokens, do_sample=False)
        assert out.shape[1] == self.ids.shape[1] + self.new_tokens
        return time.perf_counter() - start


def program_times(a, verb, extra):
    """Calls the program once and returns its median time per model, in seconds."""
    command = [a.program, "bench", verb, "--json", "--repeat", a.steps, "--threads", a.threads,
               "--hidden", a.hidden, "--intermediate", a.intermediate, "--layers", a.layers,
               "--heads", a.heads, "--vocab", a.vocab, "--batch", a.batch,
               "--attention", a.attention, *extra]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return {"diffattn " + row["route"]: row["ms"] / 1e3
            for row in json.loads(done.stdout)["points"][0]["routes"]}


def stay_on(cores):
    """Pins all threads of this process, and those they start, to these cores."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), cores)


def take_turns(a, verb, extra, peers):
    seconds = {}
    if a.cores:
        stay_on([int(core) for core in a.cores.split(",")])
    for _ in range(a.rounds):
        for name, value in program_times(a, verb, extra).items():
            seconds.setdefault(name, []).append(value)
        for name, peer in peers.items():
            for _ in range(a.steps):
                seconds.setdefault(name, []).append(peer.step())
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(title, tokens, medians, quiet):
    rows = {name: {"seconds": value, "tokens_per_second": tokens / value}
            for name, value in medians.items()}
    if not quiet:
        print(f"\n{title}")
        for name, row in rows.items():
            print(f"  {name:<28} {row['seconds'] * 1e3:>10.1f} ms {row['tokens_per_second']:>10.1f} tokens/s")
    return rows


def ratio(medians, ours, peers):
    known = [medians[name] for name in peers if name in medians]
    return min(known) / medians[ours] if known and ours in medians else None


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    report = {"torch": torch.__version__, "arguments": vars(a)}
    modes = (False,) if a.no_compile else (False, True)

    def name(family, compiled):
        return f"{family} {'compiled' if compiled else 'eager'}"

    if "step" in a.what:
        peers = {name(f, c): Stepper(f, c, a) for f in FAMILIES for c in modes}
        medians = take_turns(a, "step", ["--seq", a.seq], peers)
        report["step"] = show(f"training step, {a.batch} x {a.seq} tokens", a.batch * a.seq, medians, a.json)
        report["step_ratio_to_diffllama"] = ratio(medians, "diffattn diffllama",
                                                  [name("DiffLlama", c) for c in modes])
        report["step_ratio_to_llama"] = ratio(medians, "diffattn diffllama", [name("Llama", c) for c in modes])
        del peers
    if "generate" in a.what:
        peers = {name(f, False): Generator(f, a) for f in FAMILIES}
        medians = take_turns(a, "generate", ["--prompt", a.prompt, "--new-tokens", a.new_tokens], peers)
        report["generate"] = show(f"generation, {a.batch} x {a.new_tokens} tokens after {a.prompt}",
                                  a.batch * a.new_tokens, medians, a.json)
        report["generate_ratio_to_diffllama"] = ratio(medians, "diffattn diffllama", [name("DiffLlama", False)])
    ratios = {key: value for key, value in report.items() if "ratio" in key and value is not None}
    if a.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        for key, value in ratios.items():
            print(f"{key.replace('_', ' ')}: {value:.2f}")


if __name__ == "__main__":
    main()
