# SPDX-License-Identifier: Apache-2.0
"""Compares generation on a GPU with what a careful user of transformers writes.

    PYTHONPATH=python DIFFATTN_LIBRARY=build/release/libdiffattn.so \
        python3 benchmarks/generate.py --batch 1,32 --json generate.json

The models are Llama and DiffLlama of the same size in bfloat16 with random weights. Each runs twice in this process:
compiled, with a static KV cache and one step as a CUDA graph; and by `diffattn.Generator` on the same parameters. They
take turns, and the median of all rounds counts. Times leave out the prompt and the first new token. --warm-up only
compiles, to fill torch's cache.
"""
import argparse
import json
import statistics
import time

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM, StaticCache

FAMILIES = {"Llama": (LlamaConfig, LlamaForCausalLM), "DiffLlama": (DiffLlamaConfig, DiffLlamaForCausalLM)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--families", default="Llama,DiffLlama")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true", help="time only diffattn.Generator")
    parser.add_argument("--warm-up", action="store_true", help="compile the peers, and stop")
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


def random_model(family, a):
    config_class, model_class = FAMILIES[family]
    config = config_class(vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.intermediate,
                          num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.heads,
                          tie_word_embeddings=False, max_position_embeddings=8192)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device("cuda"):
        return model_class(config).to(torch.bfloat16).eval()


class CompiledStep:
    """A model with a static cache. A step is one compiled function, replayed as a CUDA graph."""

    def __init__(self, model, ids, a):
        batch, length = ids.size(0), a.prompt + a.new_tokens + 16
        cache = StaticCache(config=model.config, max_batch_size=batch, max_cache_len=length, device="cuda",
                            dtype=torch.bfloat16)
        places = torch.arange(a.prompt, device="cuda")
        model(input_ids=ids, past_key_values=cache, cache_position=places, use_cache=True)

        def next_tokens(ids, place):
            out = model(input_ids=ids, past_key_values=cache, cache_position=place,
                        position_ids=place[None].expand(batch, 1), use_cache=True)
            return out.logits[:, -1].argmax(-1, keepdim=True)

        self.step = torch.compile(next_tokens, mode="reduce-overhead")
        self.ids, self.prompt = ids[:, -1:].clone(), a.prompt
        self.ms_per_token(8)  # compiles

    def ms_per_token(self, count):
        ids = self.ids.clone()
        places = [torch.tensor([self.prompt + i], device="cuda") for i in range(count)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for place in places:
            ids = self.step(ids, place).clone()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / count


class OurSteps:
    """diffattn.Generator on the parameters of a model of transformers."""

    def __init__(self, model, ids):
        import diffattn
        self.generator, self.prompts = diffattn.Generator(model), ids.tolist()
        if not self.generator.uses_steps:
            raise SystemExit(f"diffattn.Generator does not use its steps: {self.generator.reason}")
        self.ms_per_token(8)

    def seconds(self, count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.generator.generate(self.prompts, max_new_tokens=count, temperature=0)
        return time.perf_counter() - start

    def ms_per_token(self, count):
        first = self.seconds(1)
        return (self.seconds(count + 1) - first) * 1e3 / count


@torch.no_grad()
def main():
    a = arguments()
    results = []
    for batch in (int(text) for text in a.batch.split(",")):
        ids = torch.randint(3, a.vocab, (batch, a.prompt), device="cuda")
        runners = {}
        for family in a.families.split(","):
            model = random_model(family, a)
            if not a.warm_up:
                runners[f"{family}, diffattn.Generator"] = OurSteps(model, ids)
            if not a.no_peers:
                runners[f"{family}, compiled"] = CompiledStep(model, ids, a)
        rounds = {name: [] for name in runners}
        for _ in range(0 if a.warm_up else a.rounds):
            for name, runner in runners.items():
                rounds[name].append(runner.ms_per_token(a.new_tokens))
        del runners
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        if a.warm_up:
            continue
        print(f"\n{batch} x {a.new_tokens} tokens after {a.prompt}")
        for name, values in rounds.items():
            ms = statistics.median(values)
            print(f"  {name:<30} {ms:>9.3f} ms per token ({min(values):.3f}-{max(values):.3f}) "
                  f"{batch / ms * 1e3:>10.0f} tokens/s", flush=True)
            results.append({"batch": batch, "prompt": a.prompt, "model": name, "ms_per_token": ms,
                            "all_ms": values, "tokens_per_second": batch / ms * 1e3})
    if a.json:
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": results},
                      file, indent=1)


if __name__ == "__main__":
    main()
