# SPDX-License-Identifier: Apache-2.0
"""Compares generation on a GPU with what a careful user of transformers writes.

    python3 benchmarks/generate.py --program build/release/diffattn --batch 1,32 --json generate.json

The peers are Llama and DiffLlama of the same size in bfloat16, with a static KV cache and one compiled step as a CUDA
graph. For each batch size the program's `bench generate` and the peers run one after the other, and that twice; the
better time counts. Prefill is not part of the peers' time; of ours it is, and `ms per token` leaves it out.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM, StaticCache

FAMILIES = {"Llama": (LlamaConfig, LlamaForCausalLM), "DiffLlama": (DiffLlamaConfig, DiffLlamaForCausalLM)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/diffattn")
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--attention", default="diffllama,transformer")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


class CompiledStep:
    """A model with a static cache. A step is one compiled function, replayed as a CUDA graph."""

    def __init__(self, family, batch, a):
        config_class, model_class = FAMILIES[family]
        config = config_class(vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.intermediate,
                              num_hidden_layers=a.layers, num_attention_heads=a.heads,
                              num_key_value_heads=a.heads, tie_word_embeddings=False,
                              max_position_embeddings=8192)
        config._attn_implementation = "sdpa"
        torch.manual_seed(0)
        model = model_class(config).to("cuda", torch.bfloat16).eval()
        length = a.prompt + a.new_tokens + 16
        cache = StaticCache(config=config, max_batch_size=batch, max_cache_len=length, device="cuda",
                            dtype=torch.bfloat16)
        ids = torch.randint(3, a.vocab, (batch, a.prompt), device="cuda")
        places = torch.arange(a.prompt, device="cuda")
        model(input_ids=ids, past_key_values=cache, cache_position=places, use_cache=True)

        def next_tokens(ids, place):
            out = model(input_ids=ids, past_key_values=cache, cache_position=place,
                        position_ids=place[None].expand(batch, 1), use_cache=True)
            return out.logits[:, -1].argmax(-1, keepdim=True)

        self.step = torch.compile(next_tokens, mode="reduce-overhead")
        self.ids, self.prompt, self.count = ids[:, -1:].clone(), a.prompt, a.new_tokens
        self.seconds(8)  # compiles

    def seconds(self, count):
        ids = self.ids.clone()
        places = [torch.tensor([self.prompt + i], device="cuda") for i in range(count)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for place in places:
            ids = self.step(ids, place).clone()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def ours(batch, a):
    """Returns ms per token of each attention variant of the program."""
    command = [a.program, "bench", "generate", "--json", "--device", "cuda", "--dtype", "bfloat16", "--repeat", 3,
               "--hidden", a.hidden, "--intermediate", a.intermediate, "--layers", a.layers, "--heads", a.heads,
               "--vocab", a.vocab, "--batch", batch, "--prompt", a.prompt, "--new-tokens", a.new_tokens,
               "--attention", a.attention]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return {"diffattn " + row["route"]: row["ms_per_token"]
            for row in json.loads(done.stdout)["points"][0]["routes"]}


@torch.no_grad()
def main():
    a = arguments()
    results = []
    for batch in (int(text) for text in a.batch.split(",")):
        peers = {} if a.no_peers else {f"{name} compiled": CompiledStep(name, batch, a) for name in FAMILIES}
        rows = {}
        for _ in range(a.rounds):
            for name, ms in ours(batch, a).items():
                rows.setdefault(name, []).append(ms)
            for name, peer in peers.items():
                times = [peer.seconds(a.new_tokens) for _ in range(3)]
                rows.setdefault(name, []).append(statistics.median(times) / a.new_tokens * 1e3)
        del peers
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        print(f"\n{batch} x {a.new_tokens} tokens after {a.prompt}")
        for name, values in rows.items():
            ms = min(values)
            print(f"  {name:<24} {ms:>9.3f} ms per token {batch / ms * 1e3:>10.0f} tokens/s", flush=True)
            results.append({"batch": batch, "prompt": a.prompt, "model": name, "ms_per_token": ms,
                            "tokens_per_second": batch / ms * 1e3})
    if a.json:
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": results},
                      file, indent=1)


if __name__ == "__main__":
    main()
