#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `diffattn serve` on this machine with models of random weights, by `diffattn bench serve`.

    serve.py --program build/release/diffattn                         # the 20 M model, on the CPU
    serve.py --program build/release/diffattn --size 374m --device cuda --clients 256 --prompt 1024 --new 128

Prints, for each number of clients, generated tokens/s with the prompts' time counted, time to the first token
and between tokens, and last the rate that `bench generate` reaches with a batch of the most clients.
"""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

SIZES = {"20m": {"hidden": 512, "intermediate": 1408, "layers": 6, "heads": 8, "vocab": 257},
         "374m": {"hidden": 1024, "intermediate": 2816, "layers": 24, "heads": 16, "vocab": 32000}}


def run(*words):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{result.stdout}{result.stderr}")
    return result.stdout


def make_model(program, folder, size, context):
    """Writes a model with random weights and a byte tokenizer: one training step of a tiny batch."""
    corpus = folder / "corpus.txt"
    corpus.write_text("the cat sat on the mat " * 2000)
    settings = {"model.hidden_size": size["hidden"], "model.intermediate_size": size["intermediate"],
                "model.num_hidden_layers": size["layers"], "model.num_attention_heads": size["heads"],
                "model.vocab_size": size["vocab"],
                "model.max_position_embeddings": context, "train.seq_len": 16, "train.batch_size": 1, "train.steps": 1,
                "train.warmup_steps": 0, "train.eval_every": 0, "data.train": corpus}
    run(program, "train", "--out", folder / "run", *(word for key, value in settings.items()
                                                      for word in ("--set", f"{key}={value}")))
    return folder / "run/model"


def measure(program, url, clients, args):
    words = ["--url", url, "--clients", clients, "--requests", max(clients, args.requests), "--json", "--prompt-tokens",
             args.prompt, "--new-tokens", args.new]
    return json.loads(run(program, "bench", "serve", *words))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--size", choices=SIZES, default="20m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=lambda text: [int(word) for word in text.split(",")], default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--requests", type=int, default=16, help="least requests of a measurement (16)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind, in turn; medians count (3)")
    args = parser.parse_args()
    size = SIZES[args.size]
    with tempfile.TemporaryDirectory() as name:
        model = make_model(args.program, pathlib.Path(name), size, args.prompt + args.new)
        most = max(args.clients)
        server = subprocess.Popen(
            [args.program, "serve", "--model", str(model), "--port", "0", "--device", args.device,
             "--max-rows", str(most), "--max-queue", "4096",
             "--cache-tokens", str(most * (args.prompt + args.new + 64))],
            stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().split()[-1]
            results = {clients: [] for clients in args.clients}
            measure(args.program, url, most, args)  # warm-up
            for _ in range(args.rounds):
                for clients in args.clients:
                    results[clients].append(measure(args.program, url, clients, args))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    for clients, rounds in results.items():
        def median(key, percentile=None, rounds=rounds):
            return statistics.median(one[key][percentile] if percentile else one[key] for one in rounds)

        line = (f"{clients:4d} clients: {median('generated_tokens_per_second'):9.1f} tokens/s; first token "
                f"{median('ms_first_token', 'p50'):8.1f} ms, p99 {median('ms_first_token', 'p99'):8.1f}")
        # Most of the large model's 32,000 tokens are no bytes of the tokenizer: their text is empty, and not sent.
        if all(one["ms_between_tokens"] for one in rounds):
            line += (f"; between tokens {median('ms_between_tokens', 'p50'):7.2f} ms, "
                     f"p99 {median('ms_between_tokens', 'p99'):7.2f}")
        print(line)
    words = ["--hidden", size["hidden"], "--intermediate", size["intermediate"], "--layers", size["layers"], "--heads",
             size["heads"], "--vocab", size["vocab"], "--device", args.device, "--batch", most, "--prompt", args.prompt,
             "--new-tokens", args.new, "--attention", "diffllama", "--repeat", args.rounds,
             "--dtype", "float32" if args.device == "cpu" else "bfloat16", "--json"]
    point = json.loads(run(args.program, "bench", "generate", *words))["points"][0]
    print(f"bench generate, batch {most}: {point['routes'][0]['tokens_per_second']:9.1f} tokens/s")


if __name__ == "__main__":
    main()
