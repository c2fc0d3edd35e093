#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a model folder with random weights at the sizes of a published model.

    benchmarks/random_model.py phi4flash OUT               # 7.7 GB in bfloat16
    benchmarks/random_model.py motif_2_6b OUT --dtype float32 --shard-gb 2
    benchmarks/random_model.py phi4flash OUT --tiny        # a few hundred kB, for tests

A training step of a small SambaY, and of a DIFF Llama with as many parameters (the script prints its sizes):

    benchmarks/random_model.py sambay_100m OUT && diffattn bench step --model OUT --dtype bfloat16 --device cuda
    diffattn bench step --attention diffllama --hidden 768 --layers 12 --heads 12 --kv-heads 6 --vocab 16384 \
      --intermediate 1888 --dtype bfloat16 --device cuda

Speed and memory of a model do not depend on the values of its weights, so such a folder stands in for the
published one. Needs numpy. It writes one tensor after another and keeps one block of random numbers.
"""
import argparse
import json
import pathlib
import struct

import numpy

BLOCK = 1 << 22  # random numbers that repeat; a prime offset per tensor keeps tensors apart


def motif(layers, hidden, inner, heads, kv_heads, noise_heads, head_dim, vocabulary, tied, theta, positions):
    config = {"model_type": "Motif", "architectures": ["MotifForCausalLM"], "hidden_act": "poly_norm",
              "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
              "vocab_size": vocabulary, "tie_word_embeddings": tied, "rope_theta": theta,
              "max_position_embeddings": positions, "rms_norm_eps": 1e-6, "attn_rms_norm_eps": 1e-5, "use_bias": False,
              "rope_scaling": None}
    if noise_heads != heads // 2:
        config["num_noise_heads"] = noise_heads
    tensors = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    if not tied:
        tensors["lm_head.weight"] = [vocabulary, hidden]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": [hidden], prefix + "post_attention_layernorm.weight": [hidden],
            prefix + "self_attn.q_proj.weight": [heads * head_dim, hidden],
            prefix + "self_attn.k_proj.weight": [kv_heads * head_dim, hidden],
            prefix + "self_attn.v_proj.weight": [kv_heads * head_dim, hidden],
            prefix + "self_attn.o_proj.weight": [hidden, 2 * (heads - noise_heads) * head_dim],
            prefix + "self_attn.subln.weight": [2 * head_dim],
            prefix + "mlp.gate_proj.weight": [inner, hidden], prefix + "mlp.up_proj.weight": [inner, hidden],
            prefix + "mlp.down_proj.weight": [hidden, inner],
            prefix + "mlp.act_fn.weight": [3], prefix + "mlp.act_fn.bias": [1]}
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            tensors[prefix + "self_attn." + name] = [head_dim]
    return config, tensors


def phi4flash(layers, hidden, inner, heads, kv_heads, vocabulary, window, positions, state=16, taps=4):
    width, channels, rank = hidden // heads, 2 * hidden, (hidden + 15) // 16
    config = {"model_type": "phi4flash", "architectures": ["Phi4FlashForCausalLM"], "hidden_act": "silu",
              "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
              "sliding_window": window, "layer_norm_eps": 1e-5, "tie_word_embeddings": True,
              "max_position_embeddings": positions, "mb_per_layer": 2}
    tensors = {"model.embed_tokens.weight": [vocabulary, hidden]}

    def norm(name):
        tensors.update({name + ".weight": [hidden], name + ".bias": [hidden]})

    norm("model.final_layernorm")
    for layer in range(layers):
        prefix, half = f"model.layers.{layer}.", layers // 2
        mixer = prefix + "attn."
        norm(prefix + "input_layernorm")
        norm(prefix + "post_attention_layernorm")
        tensors |= {prefix + "mlp.fc1.weight": [2 * inner, hidden], prefix + "mlp.fc2.weight": [hidden, inner]}
        if layer % 2 == 0 and layer <= half:
            tensors |= {
                mixer + "in_proj.weight": [2 * channels, hidden], mixer + "conv1d.weight": [channels, 1, taps],
                mixer + "conv1d.bias": [channels], mixer + "x_proj.weight": [rank + 2 * state, channels],
                mixer + "dt_proj.weight": [channels, rank], mixer + "dt_proj.bias": [channels],
                mixer + "A_log": [channels, state], mixer + "D": [channels],
                mixer + "out_proj.weight": [hidden, channels]}
        elif layer % 2 == 0:
            tensors |= {mixer + "in_proj.weight": [channels, hidden], mixer + "out_proj.weight": [hidden, channels]}
        else:
            rows = heads * width + (2 * kv_heads * width if layer <= half + 1 else 0)
            tensors |= {mixer + "Wqkv.weight": [rows, hidden], mixer + "Wqkv.bias": [rows],
                        mixer + "out_proj.weight": [hidden, heads * width], mixer + "out_proj.bias": [hidden],
                        mixer + "inner_cross_attn.subln.weight": [2 * width]}
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                tensors[mixer + "inner_cross_attn." + name] = [width]
    return config, tensors


MODELS = {
    "phi4flash": (lambda: phi4flash(32, 2560, 10240, 40, 20, 200064, 512, 262144),
                  lambda: phi4flash(8, 64, 96, 4, 2, 384, 8, 512)),
    # As wide and deep as GPT-2's smallest; half as many kv heads as heads, as in Phi-4-mini-flash.
    "sambay_100m": (lambda: phi4flash(12, 768, 2048, 12, 6, 16384, 512, 32768),
                    lambda: phi4flash(8, 64, 96, 4, 2, 384, 8, 512)),
    "motif_2_6b": (lambda: motif(32, 2048, 8192, 16, 16, 8, 128, 219520, True, 500000.0, 16384),
                   lambda: motif(3, 64, 96, 4, 4, 2, 16, 384, True, 500000.0, 512)),
    "motif_2_12_7b": (lambda: motif(40, 4096, 16384, 40, 16, 8, 128, 219520, False, 1000000.0, 16384),
                      lambda: motif(3, 64, 96, 10, 4, 2, 16, 384, False, 1000000.0, 512)),
}


def equal_diffllama(config, count):
    """Options of `bench step` for a DIFF Llama of `count` parameters with the width, depth and heads of `config`."""
    hidden, layers, vocabulary = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = hidden // heads
    mixer = 2 * hidden * hidden + 2 * hidden * kv_heads * width + 4 * width
    rest = count - 2 * vocabulary * hidden - hidden - layers * (mixer + 2 * hidden)  # the head is not tied
    intermediate = round(rest / layers / (3 * hidden) / 16) * 16
    return (f"--hidden {hidden} --layers {layers} --heads {heads} --kv-heads {kv_heads} --vocab {vocabulary} "
            f"--intermediate {intermediate}")


def spread(name, shape):
    """Mean and standard deviation of a tensor's numbers."""
    if name.endswith(("layernorm.weight", "norm.weight", "subln.weight", ".D")):
        return 1.0, 0.0
    if name.endswith(".A_log"):
        return 1.0, 0.5
    if name.endswith("dt_proj.bias"):
        return -4.0, 0.5
    if name.endswith("act_fn.weight"):
        return 1.0 / 3.0, 0.0
    if name.endswith("bias"):
        return 0.0, 0.0
    return 0.0, 0.1 if "lambda_" in name else 0.02


def to_bytes(values, dtype):
    """Rounds float32 numbers to the nearest of the type."""
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    words = values.astype("<f4").view("<u4").astype(numpy.uint64)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_file(path, tensors, dtype, block):
    size = 4 if dtype == "float32" else 2
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        count = int(numpy.prod(shape, dtype=numpy.int64))
        header[name] = {"dtype": "F32" if size == 4 else "BF16", "shape": shape,
                        "data_offsets": [end, end + size * count]}
        end += size * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    made = {}
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (name, shape) in enumerate(tensors.items()):
            key = spread(name, shape)
            if key not in made:
                made[key] = to_bytes(block * key[1] + key[0], dtype)
            left = int(numpy.prod(shape, dtype=numpy.int64)) * size
            at = number * 7919 * size % len(made[key])
            while left > 0:
                part = made[key][at:at + left]
                file.write(part)
                left, at = left - len(part), 0


def shards_of(tensors, dtype, most):
    shards, room = [{}], most
    for name, shape in tensors.items():
        size = int(numpy.prod(shape, dtype=numpy.int64)) * (4 if dtype == "float32" else 2)
        if size > room and shards[-1]:
            shards.append({})
            room = most
        shards[-1][name] = shape
        room -= size
    return shards


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--shard-gb", type=float, default=5.0)
    parser.add_argument("--tiny", action="store_true", help="the same layers at small sizes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config, tensors = MODELS[options.model][options.tiny]()
    config["torch_dtype"] = options.dtype
    options.out.mkdir(parents=True, exist_ok=True)
    block = numpy.random.default_rng(options.seed).standard_normal(BLOCK, dtype=numpy.float32)
    shards = shards_of(tensors, options.dtype, options.shard_gb * 1e9)
    weights = {}
    for number, shard in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        write_file(options.out / file, shard, options.dtype, block)
        weights |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        (options.out / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weights}, indent=1) + "\n")
    (options.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    count = sum(int(numpy.prod(shape, dtype=numpy.int64)) for shape in tensors.values())
    print(f"{options.out}: {count / 1e6:.1f} million parameters in {len(tensors)} tensors")
    if options.model == "sambay_100m" and not options.tiny:
        print("DIFF Llama of as many parameters: diffattn bench step --attention diffllama",
              equal_diffllama(config, count))


if __name__ == "__main__":
    main()
