# SPDX-License-Identifier: Apache-2.0
"""Tests the program against other packages: transformers reads and writes the same models, torch
makes the same training steps, and tensorboard opens the event files."""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import (AutoModelForCausalLM, DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig,
                              LlamaForCausalLM)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
BOUND = 2e-5
STEPS = 10
SEQ_LEN = 32
DOCUMENTS = 6

RUN_FILE = """
seed = 5
[model]
attention = "{attention}"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
initializer_range = 0.1
[data]
train = "{corpus}"
valid = "{corpus}"
[train]
steps = {steps}
batch_size = {documents}
seq_len = {seq_len}
schedule = "linear"
warmup_steps = 2
learning_rate = {rate}
weight_decay = 0.1
clip_norm = 1.0
log_every = 1
eval_every = 0
stats_every = 5
checkpoint_every = 100
"""


def program(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def our_log_probabilities(folder, ids, vocabulary):
    """Returns the log-probabilities of the program, [positions, vocabulary]."""
    text = program("generate", "--model", folder, "--prompt-ids", ",".join(map(str, ids)),
                   "--max-new-tokens", 0, "--json", "--logprobs", vocabulary)
    positions = json.loads(text)["results"][0]["logprobs"]
    result = torch.full((len(positions), vocabulary), float("nan"))
    for row, best in zip(result, positions):
        for token, value in best:
            row[token] = value
    return result


def their_log_probabilities(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].log_softmax(-1)


class Transformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        generator = random.Random(2)
        # Each text with its end token fills one row, so that every batch holds all texts in some order.
        cls.texts = ["".join(generator.choice("abcdefgh ") for _ in range(SEQ_LEN - 1))
                     for _ in range(DOCUMENTS)]
        cls.corpus = cls.folder / "corpus.jsonl"
        cls.corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in cls.texts))

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def train(self, name, attention, steps, rate):
        config = self.folder / f"{name}.toml"
        config.write_text(RUN_FILE.format(attention=attention, corpus=self.corpus, steps=steps,
                                          documents=DOCUMENTS, seq_len=SEQ_LEN, rate=rate))
        program("train", "--config", config, "--out", self.folder / name, "--json")
        return self.folder / name

    def metrics(self, run):
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    def assert_same_numbers(self, folder, model):
        generator = random.Random(3)
        vocabulary = model.config.vocab_size
        ids = [generator.randrange(vocabulary) for _ in range(21)]
        difference = (our_log_probabilities(folder, ids, vocabulary) -
                      their_log_probabilities(model, ids)).abs().max().item()
        self.assertLessEqual(difference, BOUND)

    def test_models_trained_here_open_there(self):
        for attention, kind in (("diffllama", DiffLlamaForCausalLM), ("transformer", LlamaForCausalLM)):
            with self.subTest(attention):
                folder = self.train(f"for-{attention}", attention, 5, 1e-2) / "model"
                model = AutoModelForCausalLM.from_pretrained(folder).eval()
                self.assertIsInstance(model, kind)
                self.assert_same_numbers(folder, model)

    def test_models_saved_there_open_here(self):
        sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
        for config, kind in ((DiffLlamaConfig, DiffLlamaForCausalLM), (LlamaConfig, LlamaForCausalLM)):
            for extra in ({}, {"tie_word_embeddings": True, "attention_bias": True}):
                with self.subTest(kind.__name__, extra=extra):
                    torch.manual_seed(4)
                    model = kind(config(**sizes, **extra)).eval()
                    folder = self.folder / f"from-{kind.__name__}-{len(extra)}"
                    model.save_pretrained(folder)
                    self.assert_same_numbers(folder, model)

    def batch(self, folder):
        """Returns ids and labels, [documents, seq_len]."""
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in self.texts]
        end = json.loads((folder / "config.json").read_text())["vocab_size"] - 1
        ids = torch.tensor([row + [end] for row in rows])
        self.assertEqual(ids.shape[1], SEQ_LEN)
        labels = torch.full_like(ids, -100)
        labels[:, :-1] = ids[:, 1:]
        return ids, labels

    def test_training_steps_equal_torch_on_transformers(self):
        rate = 5e-3
        for attention in ("diffllama", "transformer"):
            with self.subTest(attention):
                start = self.train(f"start-{attention}", attention, 1, 0.0) / "model"
                model = AutoModelForCausalLM.from_pretrained(start).train()
                ids, labels = self.batch(start)
                decayed = [p for n, p in model.named_parameters() if p.dim() >= 2]
                others = [p for n, p in model.named_parameters() if p.dim() < 2]
                optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                               {"params": others, "weight_decay": 0.0}],
                                              lr=rate, betas=(0.9, 0.95), eps=1e-8)
                ours = self.metrics(self.train(f"steps-{attention}", attention, STEPS, rate))
                losses = [line for line in ours if "loss" in line]
                self.assertEqual(len(losses), STEPS)
                for line in losses:
                    optimizer.zero_grad()
                    logits = model(ids).logits
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
                    loss.backward()
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    for group in optimizer.param_groups:
                        group["lr"] = line["learning_rate"]
                    optimizer.step()
                    self.assertAlmostEqual(line["loss"], loss.item(), delta=1e-5)
                    self.assertAlmostEqual(line["gradient_norm"], norm.item(), delta=1e-4)
                self.assertLess(losses[-1]["loss"], losses[0]["loss"] - 0.1)

    def test_event_files_open_in_tensorboard(self):
        run = self.train("events", "diffllama", STEPS, 5e-3)
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
        lines = self.metrics(run)
        names = {name for line in lines for name in line} - {"step"}
        self.assertIn("layer.1.lambda", names)
        self.assertIn("model_flop_utilisation", names)
        tags = {"loss": "train/loss", "valid_loss": "valid/loss", "layer.1.lambda": "lambda/layer.1",
                "model_flop_utilisation": "speed/model_flop_utilisation"}
        self.assertEqual(len(events.Tags()["scalars"]), len(names))
        self.assertTrue(all("/" in tag for tag in events.Tags()["scalars"]))
        for name, tag in ((name, tag) for name, tag in tags.items() if name in names):
            wanted = {line["step"]: line[name] for line in lines if name in line}
            found = {event.step: event.value for event in events.Scalars(tag)}
            self.assertEqual(found.keys(), wanted.keys(), name)
            for step, value in wanted.items():
                self.assertAlmostEqual(found[step], value, delta=1e-6 * max(1.0, abs(value)))


if __name__ == "__main__":
    unittest.main()
