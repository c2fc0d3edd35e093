# SPDX-License-Identifier: Apache-2.0
"""Measures how long the GPU is idle between the kernels of a generated token.

    PYTHONPATH=python DIFFATTN_LIBRARY=build/release/libdiffattn.so python3 benchmarks/token_gaps.py

`diffattn.Generator` continues one prompt of a random DiffLlama under torch's profiler, which records the start and the
end of every kernel of the step's CUDA graph (CUPTI). The kernels of a step overlap: a kernel starts and loads weights
while the one before still runs. `busy` is the time in which at least one kernel runs. The recording slows kernels
down, so the table has the time of a token with and without it.
"""
import argparse
import collections
import json
import statistics
import time

import diffattn
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


def make_generator(a):
    config = DiffLlamaConfig(vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.intermediate,
                             num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.heads,
                             tie_word_embeddings=False, max_position_embeddings=8192)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = DiffLlamaForCausalLM(config).to(getattr(torch, a.dtype)).eval()
    generator = diffattn.Generator(model)
    if not generator.uses_steps:
        raise SystemExit(f"diffattn.Generator does not use its steps: {generator.reason}")
    return generator


def kernels_of(trace):
    """Returns (start, end, name) in microseconds, in the order of their starts."""
    found = []
    for event in trace.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA and "mem" not in event.name().lower():
            start = event.start_ns() / 1e3
            found.append((start, start + event.duration_ns() / 1e3, event.name()))
    return sorted(found)


def steps_of(kernels):
    """Splits the kernels into steps, each from an embedding to the kernel before the next one."""
    begins = [i for i, kernel in enumerate(kernels) if "embed_kernel" in kernel[2]]
    return [kernels[a:b] for a, b in zip(begins, begins[1:])]


def idle_time(step, next_start):
    """Returns the time in which no kernel of a step runs, and it by the name of the kernel that follows."""
    end, idle, by_name = step[0][0], 0.0, collections.Counter()
    for start, stop, name in step:
        if start > end:
            idle += start - end
            by_name[name.split("<")[0].split("(")[0].split("::")[-1]] += start - end
        end = max(end, stop)
    if next_start > end:
        idle += next_start - end
        by_name["next step"] += next_start - end
    return idle, by_name


def main():
    a = arguments()
    generator = make_generator(a)
    prompts = torch.randint(3, a.vocab, (a.batch, a.prompt)).tolist()

    def seconds(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        generator.generate(prompts, max_new_tokens=count, temperature=0)
        return time.perf_counter() - start

    for count in (1, a.new_tokens, a.new_tokens):
        seconds(count)
    plain = statistics.median((seconds(a.new_tokens) - seconds(1)) / (a.new_tokens - 1) for _ in range(5)) * 1e6
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        seconds(a.new_tokens)
    kernels = kernels_of(trace)
    steps = steps_of(kernels)[4:]  # the host is ahead after the first ones
    starts = [step[0][0] for step in steps]
    spans, idles, names = [], [], collections.Counter()
    for step, start, following in zip(steps, starts, starts[1:]):
        idle, by_name = idle_time(step, following)
        spans.append(following - start)
        idles.append(idle)
        names.update(by_name)
    count = max(1, len(spans))
    result = {"batch": a.batch, "prompt": a.prompt, "kernels": len(steps[0]), "us_per_token": plain,
              "us_recorded": statistics.median(spans), "us_idle": statistics.median(idles),
              "idle_share": statistics.median(i / s for i, s in zip(idles, spans)),
              "idle_before_us": {name: us / count for name, us in names.most_common(12)},
              "first_kernels": [(round(s - steps[5][0][0], 2), round(e - steps[5][0][0], 2), n[:60])
                                for s, e, n in steps[5][:14]]}
    print(f"{a.batch} x {a.prompt} tokens: {result['kernels']} kernels, {plain:.0f} us per token; recorded "
          f"{result['us_recorded']:.0f} us, of them idle {result['us_idle']:.1f} us ({result['idle_share']:.1%})")
    for name, us in result["idle_before_us"].items():
        print(f"  {us:8.2f} us before {name}")
    if a.json:
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
