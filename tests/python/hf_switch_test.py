# SPDX-License-Identifier: Apache-2.0
"""Tests attn_implementation="diffattn": switching, sharding, LoRA, Trainer, and the cache of generation."""
import copy
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import transformers
    from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    raise SystemExit(77) from None  # ctest shows it as skipped

import diffattn.hf  # noqa: F401  registers the word
from diffattn._hf_cache import JoinedLayer
from hf_test import DEVICE, GOLDEN, batch, close, model_of

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def calls_of(function):
    """Counts the calls of fused operators while `function` runs, by name."""
    found = {}
    from torch.utils._python_dispatch import TorchDispatchMode

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "diffattn" and op is not torch.ops.diffattn.backend_for.default:
                name = op._schema.name.split("::")[1]
                found[name] = found.get(name, 0) + 1
            return op(*args, **(kwargs or {}))

    with Calls():
        function()
    return found


class Switch(unittest.TestCase):
    def test_one_word_both_ways(self):
        model, data = model_of().eval(), batch(padded=True)
        want = model(**data)
        for word in ("diffattn", "sdpa", "eager", "diffattn"):
            model.set_attn_implementation(word)
            self.assertEqual(model.config._attn_implementation, word)
            made = []
            calls = calls_of(lambda made=made: made.append(model(**data)))
            self.assertEqual(calls.get("attention_forward", 0), 2 if word == "diffattn" else 0, word)
            kept = data["attention_mask"].bool()
            close(made[0].logits[kept], want.logits[kept])

    def test_from_pretrained(self):
        folder = GOLDEN / "diffllama_gqa"
        want = AutoModelForCausalLM.from_pretrained(folder).to(DEVICE)
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="diffattn").to(DEVICE)
        ids = torch.arange(1, 12, device=DEVICE)[None]
        made = []
        self.assertEqual(calls_of(lambda: made.append(model(ids).logits))["attention_forward"],
                         model.config.num_hidden_layers)
        close(made[0], want(ids).logits)
        with tempfile.TemporaryDirectory() as name:  # the word is not a part of the files
            model.save_pretrained(name)
            self.assertEqual(AutoModelForCausalLM.from_pretrained(name).config._attn_implementation, "sdpa")

    def test_other_models_are_refused_in_words(self):
        llama = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                             num_attention_heads=2))
        llama.set_attn_implementation("diffattn")
        with self.assertRaisesRegex(ValueError, "'attn_implementation'.*LlamaAttention.*differential attention"):
            llama(torch.arange(4)[None])

    def test_weights_on_request(self):
        model, data = model_of(eager=True), batch(padded=True)
        want = model(**data, output_attentions=True)
        model.set_attn_implementation("diffattn")
        got = model(**data, output_attentions=True)
        kept = data["attention_mask"].bool()
        close(got.logits[kept], want.logits[kept])
        for a, b in zip(got.attentions, want.attentions):
            close(a.transpose(1, 2)[kept], b.transpose(1, 2)[kept])

    def test_copies_keep_it(self):
        model, data = model_of(), batch()
        want = model(**data).loss
        model.set_attn_implementation("diffattn")
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            self.assertEqual(calls_of(lambda twin=twin: close(twin(**data).loss, want))["attention_forward"], 2)


FSDP_PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import diffattn.hf
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
model, data = torch.load(f"{folder}/model.pt", weights_only=False)
mesh = init_device_mesh("cpu", (2,))
if sys.argv[3] == "before":
    model.set_attn_implementation("diffattn")
for layer in model.model.layers:
    fully_shard(layer.self_attn, mesh=mesh)
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
if sys.argv[3] == "after":
    diffattn.hf.accelerate(model)
loss = model(**data).loss
loss.backward()
grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
diffattn.hf.restore(model)
again = model(**data).loss
torch.save((loss.detach(), again.detach(), grads), f"{folder}/out{rank}.pt")
dist.barrier()
os._exit(0)  # torch's own threads may abort an interpreter that ends after collectives of DTensors
"""


class Sharded(unittest.TestCase):
    def test_fsdp2_also_on_the_attention_itself(self):
        data = {name: value.cpu() for name, value in batch(padded=True).items()}
        model = model_of().cpu()
        want = model(**data).loss
        want.backward()
        for when in ("before", "after"):
            with tempfile.TemporaryDirectory() as folder:
                torch.save((copy.deepcopy(model), data), f"{folder}/model.pt")
                running = [subprocess.Popen([sys.executable, "-c", FSDP_PROGRAM, str(rank), folder, when],
                                            stderr=subprocess.PIPE, text=True) for rank in range(2)]
                for process in running:
                    _, error = process.communicate(timeout=600)
                    self.assertEqual(process.returncode, 0, error)
                loss, again, grads = torch.load(f"{folder}/out0.pt")
            close(loss, want.detach())
            close(again, want.detach())
            for name, parameter in model.named_parameters():
                close(grads[name], parameter.grad)


class Adapters(unittest.TestCase):
    def test_lora_trains_and_generates_the_same(self):
        if importlib.util.find_spec("peft") is None:
            self.skipTest("skipped: peft is not installed")
        from peft import LoraConfig, get_peft_model
        outcomes = []
        for word in ("sdpa", "diffattn"):
            torch.manual_seed(5)
            model = get_peft_model(model_of(), LoraConfig(target_modules=["q_proj", "v_proj", "o_proj"], r=4,
                                                          init_lora_weights=False))
            model.set_attn_implementation(word)
            loss = model(**batch(padded=True)).loss
            loss.backward()
            grads = [p.grad for p in model.parameters() if p.requires_grad]
            self.assertEqual(len(grads), 12)
            tokens = model.eval().generate(input_ids=batch()["input_ids"][:1], max_new_tokens=8, do_sample=False)
            outcomes.append((loss.detach(), grads, tokens))
        (want, want_grads, want_tokens), (got, got_grads, got_tokens) = outcomes
        close(got, want)
        for a, b in zip(got_grads, want_grads):
            close(a, b)
        self.assertTrue(torch.equal(got_tokens, want_tokens))

    def test_trainer_saves_resumes_and_takes_the_best(self):
        try:
            from transformers import Trainer, TrainingArguments
        except ImportError as error:
            self.skipTest(f"skipped: {error}")
        rows = [{key: value[i].cpu() for key, value in batch(padded=True).items()} for i in range(3)]
        with tempfile.TemporaryDirectory() as folder:
            def trainer(steps):
                model = model_of()
                model.set_attn_implementation("diffattn")
                return Trainer(model=model, train_dataset=rows, eval_dataset=rows, args=TrainingArguments(
                    output_dir=folder, max_steps=steps, per_device_train_batch_size=3, report_to=[], save_steps=2,
                    eval_steps=2, eval_strategy="steps", load_best_model_at_end=True, gradient_checkpointing=True,
                    disable_tqdm=True, seed=1, use_cpu=DEVICE == "cpu", learning_rate=1e-3))
            trainer(2).train()
            later = trainer(4)
            later.train(resume_from_checkpoint=True)
            self.assertEqual(later.state.global_step, 4)
            self.assertEqual(later.model.config._attn_implementation, "diffattn")
            self.assertEqual(calls_of(lambda: later.evaluate())["attention_forward"], 2)


class GenerationCache(unittest.TestCase):
    """The cache that generation reads where it is."""

    def setUp(self):
        self.model, self.ids = model_of(4, 2, layers=2).eval(), batch()["input_ids"][:2]
        with torch.no_grad():
            self.whole = self.model(self.ids).logits
        self.model.set_attn_implementation("diffattn")

    def fill(self, cache, begin, end, rows=2):
        return self.model(self.ids[:rows, begin:end], past_key_values=cache).logits

    def test_tokens_are_one_operator_a_layer_and_copy_nothing(self):
        cache = DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.fill(cache, 0, 8)
            self.fill(cache, 8, 9)
            room = [layer._keys.room.data_ptr() for layer in cache.layers]
            logits = []
            calls = calls_of(lambda: logits.append(self.fill(cache, 9, 10)))
        close(logits[0], self.whole[:, 9:10])
        self.assertEqual(room, [layer._keys.room.data_ptr() for layer in cache.layers])
        wanted = {"token_layer": 2} if DEVICE == "cpu" else {"decode": 2}
        self.assertEqual(calls, wanted)

    def test_every_way_to_fill_it(self):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            for former in (False, True):
                cache = DynamicCache(config=self.model.config)
                self.model.set_attn_implementation("sdpa" if former else "diffattn")
                with mode():
                    self.fill(cache, 0, 6)
                self.model.set_attn_implementation("diffattn")
                with torch.no_grad():
                    close(self.fill(cache, 6, 7), self.whole[:, 6:7])
                with mode():
                    close(self.fill(cache, 7, 12), self.whole[:, 7:12])
                    for i in range(12, 15):
                        close(self.fill(cache, i, i + 1), self.whole[:, i:i + 1])
                self.model.set_attn_implementation("sdpa")  # reads it, too
                with torch.no_grad():
                    close(self.fill(cache, 15, 21), self.whole[:, 15:21])
                self.assertEqual(cache.get_seq_length(), 21)

    def test_it_is_a_dynamic_layer(self):
        plain, ours = DynamicCache(config=self.model.config), DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model.set_attn_implementation("sdpa")
            self.fill(plain, 0, 9)
            self.fill(plain, 9, 10)
            self.model.set_attn_implementation("diffattn")
            self.fill(ours, 0, 9)
            self.fill(ours, 9, 10)
        self.assertIs(type(ours.layers[0]), JoinedLayer)
        snapshot = copy.deepcopy(ours)
        chosen = torch.tensor([1, 0, 1], device=DEVICE)
        for change in (lambda c: None, lambda c: c.crop(-3), lambda c: c.batch_repeat_interleave(2),
                       lambda c: c.batch_select_indices(chosen),
                       lambda c: c.reorder_cache(torch.tensor([2, 0, 1], device=DEVICE))):
            change(plain)
            change(ours)
            for a, b in zip(ours.layers, plain.layers):
                close(a.keys, b.keys)
                close(a.values, b.values)
            self.assertEqual(ours.get_seq_length(), plain.get_seq_length())
        with torch.no_grad():
            close(self.fill(snapshot, 10, 11), self.whole[:, 10:11])
            ours.reset()
            close(self.fill(ours, 0, 4), self.whole[:, :4])

    def test_hooks_and_padding_still_count(self):
        seen = []
        hook = self.model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
        cache = DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.fill(cache, 0, 8)
            self.fill(cache, 8, 9)
        self.assertEqual(len(seen), 2)
        hook.remove()
        for left in (True, False):
            mask = torch.ones_like(self.ids)
            if left:
                mask[1, :4] = 0
            else:
                mask[1, 3] = 0  # a hole
            outputs = []
            for word in ("sdpa", "diffattn"):
                self.model.set_attn_implementation(word)
                cache = DynamicCache(config=self.model.config)
                with torch.no_grad():
                    self.model(self.ids[:, :9], attention_mask=mask[:, :9], past_key_values=cache)
                    outputs.append(self.model(self.ids[:, 9:10], attention_mask=mask[:, :10],
                                              past_key_values=cache).logits)
            close(outputs[1], outputs[0])

    def test_the_operator_names_wrong_tensors(self):
        layer = torch.nn.Linear(4, 4)
        with self.assertRaisesRegex(RuntimeError, "'parts': expected 13 tensors, got 1"):
            torch.ops.diffattn.token_layer(torch.ones(1, 1, 4), [layer.weight.detach()], torch.ones(1, 2, 2, 2),
                                           torch.ones(1, 2, 1, 4), 0, torch.ones(1, 1), torch.ones(1, 1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)  # prints why tests are skipped
