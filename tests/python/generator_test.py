# SPDX-License-Identifier: Apache-2.0
"""Tests diffattn.Generator: models of transformers in memory, folders, streaming."""
import os
import pathlib
import sys
import tempfile
import unittest

import torch

import diffattn

try:
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM
except ImportError:
    print("skipped: transformers is not installed")
    sys.exit(77)

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2)
PROMPTS = [[5, 6, 7], [1], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]


def make(config_class, model_class, **more):
    torch.manual_seed(3)
    config = config_class(**{**SIZES, "eos_token_id": None, "bos_token_id": None, "pad_token_id": 0, **more})
    return model_class(config).eval()


def by_transformers(model, prompt, count):
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return out[0, len(prompt):].tolist()


class InMemory(unittest.TestCase):
    def test_greedy_tokens_are_those_of_transformers(self):
        for config_class, model_class in ((DiffLlamaConfig, DiffLlamaForCausalLM), (LlamaConfig, LlamaForCausalLM)):
            for tied in (False, True):
                model = make(config_class, model_class, tie_word_embeddings=tied)
                generator = diffattn.Generator(model)
                self.assertTrue(generator.uses_steps, generator.reason)
                rows = generator.generate(PROMPTS, max_new_tokens=20)
                self.assertEqual(rows, [by_transformers(model, prompt, 20) for prompt in PROMPTS])
                self.assertEqual(generator.generate(PROMPTS[0], max_new_tokens=20), rows[0])
                self.assertEqual(generator.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=20), rows[:1])

    def test_it_reads_the_parameters_where_they_are(self):
        model = make(DiffLlamaConfig, DiffLlamaForCausalLM)
        generator = diffattn.Generator(model)
        before = generator.generate(PROMPTS, max_new_tokens=10)
        with torch.no_grad():
            model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
        after = generator.generate(PROMPTS, max_new_tokens=10)
        self.assertNotEqual(before, after)
        self.assertEqual(after, [by_transformers(model, prompt, 10) for prompt in PROMPTS])

    @unittest.skipUnless(torch.cuda.is_available(), "skipped: no GPU")
    def test_gpu(self):
        model = make(DiffLlamaConfig, DiffLlamaForCausalLM).to("cuda", torch.bfloat16)
        generator = diffattn.Generator(model)
        self.assertTrue(generator.uses_steps, generator.reason)
        self.assertEqual([len(row) for row in generator.generate(PROMPTS, max_new_tokens=20)], [20] * 3)

    def test_options_and_errors(self):
        model = make(DiffLlamaConfig, DiffLlamaForCausalLM)
        generator = diffattn.Generator(model)
        plain = generator.generate(PROMPTS, max_new_tokens=20)
        stop = plain[0][4]
        short = generator.generate(PROMPTS[0], max_new_tokens=20, stop_tokens=[stop])
        self.assertEqual(short, plain[0][:plain[0].index(stop) + 1])
        self.assertNotEqual(generator.generate(PROMPTS, max_new_tokens=20, presence_penalty=5.0), plain)
        warm = dict(max_new_tokens=20, temperature=1.0, seed=4)
        self.assertEqual(generator.generate(PROMPTS, **warm), generator.generate(PROMPTS, **warm))
        with self.assertRaisesRegex(TypeError, "no option 'max_tokens'"):
            generator.generate(PROMPTS, max_tokens=3)
        with self.assertRaisesRegex(RuntimeError, r"prompts\[0\].*\[0, 96\].*97"):
            generator.generate([[97]])
        with self.assertRaisesRegex(ValueError, "at least one"):
            generator.generate([])
        with self.assertRaisesRegex(TypeError, "expected a folder or a causal language model"):
            diffattn.Generator(torch.nn.Linear(2, 2))
        with self.assertRaisesRegex(ValueError, "which has its own"):
            diffattn.Generator(model, dtype="float32")
        nan, big = float("nan"), 2**64
        for option, value in (("max_new_tokens", "3"), ("max_new_tokens", True), ("temperature", nan), ("top_p", "x"),
                              ("presence_penalty", float("inf")), ("seed", -1), ("seed", big), ("stop_tokens", [0.5])):
            with self.assertRaisesRegex((TypeError, ValueError), f"argument '{option}': expected"):
                generator.generate(PROMPTS, **{option: value})
        for prompts in ([[1.5]], [["a"]], [[big]], ["hi", [1]], torch.ones(1, 1, 1), torch.ones(2), torch.tensor(3),
                        None, "\ud800"):
            with self.assertRaisesRegex((TypeError, ValueError), "argument 'prompts': expected"):
                generator.generate(prompts)

    def test_streaming(self):
        model = make(DiffLlamaConfig, DiffLlamaForCausalLM)
        generator = diffattn.Generator(model)
        rows = [[] for _ in PROMPTS]
        for row, token in generator.stream(PROMPTS, max_new_tokens=12):
            rows[row].append(token)
        self.assertEqual(rows, generator.generate(PROMPTS, max_new_tokens=12))
        seen = []
        for _, token in generator.stream(PROMPTS[0], max_new_tokens=1 << 20):
            seen.append(token)
            if len(seen) == 5:
                break
        self.assertEqual(seen, generator.generate(PROMPTS[0], max_new_tokens=5))
        with self.assertRaisesRegex(RuntimeError, "top_p"):
            list(generator.stream(PROMPTS, temperature=1.0, top_p=3.0))


class Folders(unittest.TestCase):
    def test_texts_and_ids(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            corpus = folder / "corpus.txt"
            corpus.write_text(pathlib.Path(__file__).read_text())
            outcome = diffattn.train(
                {"task": "lm", "data": {"tokenizer": "bytes", "train": str(corpus)},
                 "model": {"attention": "diffllama", "hidden_size": 32, "intermediate_size": 64,
                           "num_hidden_layers": 1, "num_attention_heads": 4},
                 "train": {"steps": 2, "batch_size": 2, "seq_len": 64, "peak_tflops": 0.1}}, folder / "run")
            generator = diffattn.Generator(outcome["model"], dtype="float32", device="cpu")
            model = diffattn.load(outcome["model"])
            text = generator.generate("def ", max_new_tokens=12)
            self.assertEqual(text, model.generate("def ", max_new_tokens=12))
            self.assertEqual(generator.generate(["def ", "x"], max_new_tokens=3),
                             model.generate(["def ", "x"], max_new_tokens=3))
            pieces = "".join(piece for _, piece in generator.stream("def ", max_new_tokens=12))
            self.assertEqual(pieces, text)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    unittest.main(verbosity=2)
