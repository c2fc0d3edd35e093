# SPDX-License-Identifier: Apache-2.0
"""Compares diffattn.hf_layers with DiffLlama of transformers: norms, feed-forward layers and the loss."""
import copy
import inspect
import os
import pickle
import unittest

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import transformers
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77) from None  # ctest shows it as skipped

import diffattn.hf
from diffattn import hf_layers

transformers.utils.logging.set_verbosity_error()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_of(dtype=torch.float32, **more):
    torch.manual_seed(3)
    config = DiffLlamaConfig(**{**dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                       num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
                                       max_position_embeddings=64), **more})
    model = DiffLlamaForCausalLM(config).to(DEVICE, dtype).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
    return model


def batch():
    generator = torch.Generator().manual_seed(8)
    ids = torch.randint(1, 64, (3, 21), generator=generator)
    labels = ids.clone()
    labels[1, :6] = -100
    labels[2, 15:] = -100
    return dict(input_ids=ids.to(DEVICE), labels=labels.to(DEVICE))


def loss_and_gradients(model, **data):
    model.zero_grad(set_to_none=True)
    output = model(use_cache=False, **data)
    output.loss.backward()
    return output, {name: parameter.grad for name, parameter in model.named_parameters()}


def worst(got, want):
    """Returns the largest error of the gradients, each relative to its largest magnitude."""
    return max(((got[name] - want[name]).abs().max() / want[name].abs().max()).item() for name in want)


class Layers(unittest.TestCase):
    def test_loss_and_gradients_in_float32(self):
        for more in ({}, {"tie_word_embeddings": True}, {"hidden_act": "gelu"}):
            model = model_of(**more)
            want, gradients = loss_and_gradients(model, **batch())
            hf_layers.enable(model)
            got, mine = loss_and_gradients(model, **batch())
            self.assertIsNone(got.logits)
            self.assertAlmostEqual(got.loss.item(), want.loss.item(), delta=2e-6 * want.loss.item())
            self.assertLess(worst(mine, gradients), 2e-5, more)

    def test_loss_and_gradients_in_bfloat16(self):
        """The error against float32 is at most twice that of transformers in bfloat16."""
        model, wide = model_of(torch.bfloat16), model_of()
        wide.load_state_dict(model.state_dict())
        exact, exact_gradients = loss_and_gradients(wide, **batch())
        theirs, their_gradients = loss_and_gradients(model, **batch())
        hf_layers.enable(model)
        ours, our_gradients = loss_and_gradients(model, **batch())
        self.assertLess(abs(ours.loss.item() - exact.loss.item()),
                        2 * abs(theirs.loss.item() - exact.loss.item()) + 4e-3)
        self.assertLess(worst(our_gradients, exact_gradients), 2 * worst(their_gradients, exact_gradients) + 4e-3)

    def test_accumulated_batches_divide_by_the_given_count(self):
        model, data = model_of(), batch()
        for count in (100, torch.tensor(37)):
            want = model(**data, num_items_in_batch=count).loss
            hf_layers.enable(model)
            got = model(**data, num_items_in_batch=count).loss
            torch.testing.assert_close(got, want, rtol=2e-6, atol=0)
            hf_layers.disable(model)
        shifted = torch.nn.functional.pad(data["labels"], (0, 1), value=-100)[..., 1:].contiguous()
        want = model(**data, shift_labels=shifted).loss
        hf_layers.enable(model)
        torch.testing.assert_close(model(**data, shift_labels=shifted).loss, want, rtol=2e-6, atol=0)

    def test_the_kernels_run(self):
        model = model_of()
        hf_layers.enable(model)
        with torch.profiler.profile() as trace:
            model(**batch()).loss.backward()
        names = {event.name for event in trace.events()}
        for name in ("rms_norm", "swiglu", "linear_cross_entropy"):
            self.assertIn(f"diffattn::{name}", names)
        self.assertNotIn("aten::silu", names)

    def test_logits_outside_of_training(self):
        model, data = model_of().eval(), batch()
        with torch.no_grad():
            want = model(**data)
            hf_layers.enable(model)
            got = model(**data)
        torch.testing.assert_close(got.logits, want.logits, rtol=0, atol=2e-5 * want.logits.abs().max().item())
        torch.testing.assert_close(got.loss, want.loss, rtol=1e-5, atol=0)
        model.train()
        self.assertIsNotNone(model(**data, logits_to_keep=21).logits)
        self.assertIsNotNone(model(input_ids=data["input_ids"]).logits)

    def test_tuples(self):
        model = model_of()
        hf_layers.enable(model)
        output = model(**batch(), return_dict=False, use_cache=False)
        self.assertIsInstance(output, tuple)
        self.assertEqual(output[0].shape, ())

    def test_disable_copies_and_files(self):
        model, data = model_of(), batch()
        want = model(**data)
        hf_layers.enable(model)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            self.assertIsNone(other(**data).logits)
        self.assertIsNone(model(**data).logits)
        hf_layers.disable(model)
        self.assertTrue(torch.equal(model(**data).logits, want.logits))

    def test_a_module_that_watches_the_head_keeps_its_logits(self):
        model = model_of()
        hf_layers.enable(model)
        seen = []
        model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
        self.assertIsNotNone(model(**batch()).logits)
        self.assertEqual(len(seen), 1)

    def test_compiled_models_leave_it_to_the_compiler(self):
        model, data = model_of(num_hidden_layers=1), batch()
        want = model(**data).loss
        hf_layers.enable(model)
        got = torch.compile(model, backend="eager")(**data)
        self.assertIsNotNone(got.logits)
        torch.testing.assert_close(got.loss, want, rtol=1e-5, atol=0)

    def test_accelerate_switches_layers_on(self):
        if "layers" not in inspect.signature(diffattn.hf.accelerate).parameters:
            self.skipTest("diffattn.hf.accelerate has no argument layers")
        model, data = model_of(), batch()
        want = model(**data)
        got = diffattn.hf.accelerate(model, layers=True)(**data)
        self.assertIsNone(got.logits)
        torch.testing.assert_close(got.loss, want.loss, rtol=1e-5, atol=0)
        self.assertIsNotNone(diffattn.hf.restore(model)(**data).logits)


if __name__ == "__main__":
    unittest.main()
