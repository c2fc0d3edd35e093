# SPDX-License-Identifier: Apache-2.0
"""Compares diffattn.hf with DiffLlama of transformers: numbers, caches, generation, training, files."""
import contextlib
import copy
import io
import os
import pathlib
import re
import tempfile
import unittest

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import transformers
    from transformers import (AutoModelForCausalLM, DiffLlamaConfig, DiffLlamaForCausalLM,
                              DiffLlamaForSequenceClassification, DynamicCache, LlamaConfig,
                              LlamaForCausalLM, StaticCache)
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77) from None  # ctest shows it as skipped
from safetensors.torch import load_file

import diffattn
from diffattn.hf import accelerate, restore

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "golden"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Random configurations are drawn from these values: heads, kv heads, head_dim, bias, tied, eager.
CONFIGURATIONS = [(2, 2, 16, False, False, False), (4, 2, 8, True, False, False),
                  (8, 4, 12, False, True, True), (16, 2, 16, True, True, False),
                  (12, 6, 10, False, False, False)]


def model_of(heads=4, kv_heads=2, head_dim=8, bias=False, tied=False, eager=False, layers=2, **more):
    torch.manual_seed(heads)
    config = DiffLlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=48,
                             num_hidden_layers=layers, num_attention_heads=heads,
                             num_key_value_heads=kv_heads, head_dim=head_dim, attention_bias=bias,
                             tie_word_embeddings=tied, max_position_embeddings=128, pad_token_id=0,
                             initializer_range=0.3, **more)
    config._attn_implementation = "eager" if eager else "sdpa"
    return DiffLlamaForCausalLM(config).to(DEVICE)


def batch(padded=False, hole=False):
    """Returns ids, attention_mask and labels. padded: row 1 on the left, row 2 on the right; hole: in row 2."""
    generator = torch.Generator().manual_seed(8)
    ids = torch.randint(1, 61, (3, 21), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :6] = 0
        mask[2, 15:] = 0
    if hole:
        mask[2, 4] = 0
    labels = ids.masked_fill(mask == 0, -100)
    return dict(input_ids=ids.to(DEVICE), attention_mask=mask.to(DEVICE), labels=labels.to(DEVICE))


def close(got, want, tolerance=2e-5):
    """Asserts that the error is at most `tolerance` times the largest magnitude, or times 1."""
    scale = max(1.0, want.abs().max().item())
    torch.testing.assert_close(got, want, atol=tolerance * scale, rtol=0)


class Numbers(unittest.TestCase):
    def compare(self, model, data, tolerance=2e-5):
        """Returns the logits without padding, the loss, and the gradient of every parameter."""
        want = model(**data)
        want.loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad(set_to_none=True)
        got = accelerate(model)(**data)
        got.loss.backward()
        kept = data["attention_mask"].bool()
        close(got.logits[kept], want.logits[kept], tolerance)
        close(got.loss, want.loss, tolerance)
        for name, parameter in model.named_parameters():
            close(parameter.grad, gradients[name], tolerance)

    def test_golden_folders(self):
        for name in ("diffllama_mha", "diffllama_gqa"):
            # The recorded masks let a row of padding see all columns equally.
            model = accelerate(AutoModelForCausalLM.from_pretrained(
                GOLDEN / name, attn_implementation="eager").to(DEVICE))
            golden = {key: tensor.to(DEVICE)
                      for key, tensor in load_file(GOLDEN / name / "io.safetensors").items()}
            ids, mask = golden["input_ids"], golden["attention_mask"]
            out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True,
                        labels=ids.masked_fill(mask == 0, -100))
            close(out.logits[mask.bool()], golden["logits"][mask.bool()])
            close(out.loss, golden["loss"].squeeze())
            for i, hidden in enumerate(out.hidden_states):
                close(hidden[mask.bool()], golden[f"hidden.{i}"][mask.bool()])
            out.loss.backward()
            for key, parameter in model.named_parameters():
                close(parameter.grad, golden[f"grad.{key}"])
            model = accelerate(AutoModelForCausalLM.from_pretrained(GOLDEN / name).to(DEVICE))
            logits = model(input_ids=ids, attention_mask=mask).logits
            close(logits[mask.bool()], golden["logits"][mask.bool()])
            tokens = model.generate(ids[:1, :8], attention_mask=torch.ones_like(ids[:1, :8]),
                                    max_new_tokens=24, do_sample=False)
            self.assertTrue(torch.equal(tokens, golden["greedy"]))

    def test_random_configurations(self):
        for i, configuration in enumerate(CONFIGURATIONS):
            with self.subTest(configuration=configuration):
                self.compare(model_of(*configuration), batch(padded=i % 2 == 1))
        for hole in (False, True):
            self.compare(model_of(), batch(padded=True, hole=hole))
            self.compare(model_of(eager=True), batch(padded=True, hole=hole))

    def test_bfloat16_is_as_close_to_float32_as_transformers(self):
        for configuration in CONFIGURATIONS[:3]:
            model, data = model_of(*configuration), batch()
            exact = model(**data).logits
            model = model.bfloat16()
            theirs = (model(**data).logits.float() - exact).square().mean().sqrt()
            ours = (accelerate(model)(**data).logits.float() - exact).square().mean().sqrt()
            self.assertLess(ours.item(), 1.1 * theirs.item())

    def test_packed_positions_and_masks_of_ones_own(self):
        model, ids = model_of(), batch()["input_ids"]
        positions = torch.cat([torch.arange(8), torch.arange(13)])[None].expand(3, -1).to(DEVICE)
        own = torch.rand(3, 1, 21, 21, device=DEVICE) > 0.3
        own |= torch.eye(21, dtype=torch.bool, device=DEVICE)
        calls = (dict(position_ids=positions), dict(attention_mask=own))
        want = [model(input_ids=ids, **call).logits for call in calls]
        accelerate(model)
        for call, expected in zip(calls, want):
            close(model(input_ids=ids, **call).logits, expected)

    def test_maps_on_request_of_an_eager_model(self):
        model, ids = model_of(eager=True), batch()["input_ids"]
        want = model(input_ids=ids, output_attentions=True).attentions
        got = accelerate(model)(input_ids=ids, output_attentions=True).attentions
        self.assertEqual(len(got), 2)
        for a, b in zip(got, want):
            close(a, b)


class Generation(unittest.TestCase):
    def test_same_tokens_every_way(self):
        model, data = model_of(4, 2, layers=3).eval(), batch(padded=True)
        prompts = dict(input_ids=data["input_ids"][:2, :12], attention_mask=data["attention_mask"][:2, :12])
        ways = (dict(do_sample=False), dict(num_beams=3, do_sample=False),
                dict(do_sample=True, temperature=0.8, top_k=20),
                dict(do_sample=False, cache_implementation="static", disable_compile=True),
                dict(do_sample=False, use_cache=False))

        def tokens():
            result = []
            for way in ways:
                torch.manual_seed(4)
                result.append(model.generate(**prompts, max_new_tokens=10, **way))
            return result

        want = tokens()
        accelerate(model)
        for way, got, expected in zip(ways, tokens(), want):
            self.assertTrue(torch.equal(got, expected), way)

    def test_caches_filled_in_pieces(self):
        model, ids = model_of(), batch()["input_ids"]
        whole = model(input_ids=ids).logits
        accelerate(model)
        for cache in (DynamicCache(config=model.config),
                      StaticCache(config=model.config, max_cache_len=40)):
            for begin, end in ((0, 9), (9, 10), (10, 17), (17, 21)):
                with torch.no_grad():
                    out = model(input_ids=ids[:, begin:end], past_key_values=cache)
                close(out.logits, whole[:, begin:end])


class Training(unittest.TestCase):
    def test_gradient_checkpointing_and_compile(self):
        data = batch(padded=True)
        plain, compiled, checkpointed = model_of(), accelerate(model_of()), accelerate(model_of())
        want = plain(**data).loss
        want.backward()
        checkpointed.gradient_checkpointing_enable()
        checkpointed.train()
        graphs = []

        def backend(graph, examples):
            graphs.append(graph)
            return graph

        losses = (checkpointed(**data).loss,
                  torch.compile(compiled, backend=backend, fullgraph=True)(**data).loss)
        self.assertEqual(len(graphs), 1)
        for loss, model in zip(losses, (checkpointed, compiled)):
            close(loss, want)
            loss.backward()
            for a, b in zip(model.parameters(), plain.parameters()):
                close(a.grad, b.grad)

    def test_trainer(self):
        try:
            from transformers import Trainer, TrainingArguments
        except ImportError as error:
            self.skipTest(f"skipped: {error}")
        rows = [{key: value[i].cpu() for key, value in batch(padded=True).items()} for i in range(3)]
        losses = []
        for change in (lambda model: model, accelerate):
            with tempfile.TemporaryDirectory() as folder:
                arguments = TrainingArguments(output_dir=folder, max_steps=3, logging_steps=1,
                                              per_device_train_batch_size=3, report_to=[],
                                              save_strategy="no", disable_tqdm=True, seed=1,
                                              use_cpu=DEVICE == "cpu", learning_rate=1e-3)
                trainer = Trainer(model=change(model_of()), args=arguments, train_dataset=rows)
                trainer.train()
                losses.append([entry["loss"] for entry in trainer.state.log_history
                               if "loss" in entry])
        self.assertEqual(len(losses[0]), 3)
        for a, b in zip(*losses):
            self.assertAlmostEqual(a, b, delta=2e-3)  # the log rounds to four digits


class Files(unittest.TestCase):
    def test_saving_loading_and_restoring(self):
        model, data = model_of(tied=True), batch(padded=True)
        before, want = copy.deepcopy(model.state_dict()), model(**data).logits
        accelerate(model)
        with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
            restored = restore(copy.deepcopy(model))
            model.save_pretrained(a)
            restored.save_pretrained(b)
            for name in sorted(os.listdir(b)):
                self.assertEqual((pathlib.Path(a) / name).read_bytes(),
                                 (pathlib.Path(b) / name).read_bytes(), name)
            loaded = AutoModelForCausalLM.from_pretrained(a).to(DEVICE)
        self.assertTrue(torch.equal(loaded(**data).logits, want))
        self.assertTrue(torch.equal(restored(**data).logits, want))
        self.assertEqual(list(before), list(model.state_dict()))
        self.assertTrue(torch.equal(restore(model)(**data).logits, want))
        self.assertEqual(model.config._attn_implementation, "sdpa")

    def test_other_heads_and_implementations(self):
        config = copy.deepcopy(model_of().config)
        config._attn_implementation = "flex_attention"
        classifier = DiffLlamaForSequenceClassification(config).to(DEVICE)
        accelerate(classifier)
        self.assertEqual(classifier.config._attn_implementation, "diffattn")
        data = batch(padded=True)
        got = classifier(data["input_ids"], data["attention_mask"]).logits
        restore(classifier)
        self.assertEqual(classifier.config._attn_implementation, "flex_attention")
        classifier.config._attn_implementation = "sdpa"
        close(got, classifier(data["input_ids"], data["attention_mask"]).logits)


class Documents(unittest.TestCase):
    def test_python_page(self):
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
        blocks = [block for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
                  if "transformers" in block or "hf_layers" in block]
        self.assertEqual(len(blocks), 2)
        names = {"torch": torch, "diffattn": diffattn}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("".join(blocks), "docs/python.md", "exec"), names)
        self.assertEqual(names["model"].config._attn_implementation, "sdpa")


class Refusals(unittest.TestCase):
    def refused(self, model, kind, text):
        before = [type(m) for m in model.modules()]
        with self.assertRaisesRegex(kind, text):
            accelerate(model)
        self.assertEqual(before, [type(m) for m in model.modules()])

    def test_each_says_what_to_do(self):
        llama = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8,
                                             num_hidden_layers=1, num_attention_heads=2))
        self.refused(llama, TypeError, "got LlamaForCausalLM.*diffattn convert")
        with self.assertRaisesRegex(TypeError, "expected a transformers DiffLlama model, got str"):
            accelerate("runs/a/model")
        dropout = model_of()
        dropout.config.attention_dropout = 0.1
        self.refused(dropout, ValueError, "attention_dropout = 0.1.*set it to 0")
        eighth = model_of()
        weight = eighth.model.layers[1].self_attn.k_proj.weight
        weight.data = weight.data.to(torch.float8_e4m3fn)
        self.refused(eighth, ValueError, "layer 1 has k_proj.weight in .*float8.*load the model in")
        twice = accelerate(model_of(eager=True))
        self.assertIs(accelerate(twice), twice)
        self.assertEqual(restore(twice).config._attn_implementation, "eager")
        own = model_of()
        own.model.layers[0].self_attn.__class__ = type("Own", (DiffLlamaAttention,), {"forward": lambda self: None})
        self.refused(own, ValueError, "is a Own.*call diffattn.attention")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)  # prints why tests are skipped
