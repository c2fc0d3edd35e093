# SPDX-License-Identifier: Apache-2.0
"""Opens in Python what the program writes: every task, layout and folder, as torch modules; and analyses it."""
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch

import diffattn

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
PUBLISHED = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "published"
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TRAIN = {"steps": 4, "batch_size": 2, "seq_len": 64, "peak_tflops": 0.1, "checkpoint_every": 2}


def answers(*arguments):
    """Returns the results of a verb that reads and writes lines."""
    result = subprocess.run([PROGRAM, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["results"]


def recording(folder):
    """Returns the tensors that a published model's own code computed."""
    data = bytearray((folder / "io.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": torch.float32, "I64": torch.int64}
    return {name: torch.frombuffer(data[start:][slice(*item["data_offsets"])], dtype=types[item["dtype"]])
            .reshape(item["shape"])
            for name, item in json.loads(data[8:start]).items()
            if name in ("input_ids", "attention_mask", "logits", "greedy.prompt", "greedy.tokens")}


class Folders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        text = cls.folder / "corpus.txt"
        text.write_text(pathlib.Path(__file__).read_text())
        cls.ids = torch.tensor([list(b"import json")])
        config = {"task": "lm", "model": {"attention": "diffllama", **SIZES}, "train": TRAIN,
                  "data": {"tokenizer": "bytes", "train": text}}
        cls.run_folder = cls.folder / "run"
        cls.model = diffattn.load(diffattn.train(config, cls.run_folder)["model"])

    def lines(self, name, rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def test_runs_and_checkpoints(self):
        for given in (self.run_folder, self.run_folder / "checkpoints" / "step-4", self.run_folder / "latest"):
            model = diffattn.load(given)
            self.assertTrue(torch.equal(model.logits(self.ids), self.model.logits(self.ids)), given)

    def test_a_folder_of_links_as_in_a_cache_of_hugging_face(self):
        cache = self.folder / "models--made--up"
        snapshot = cache / "snapshots" / "c0ffee"
        for folder in (snapshot, cache / "blobs"):
            folder.mkdir(parents=True)
        source = pathlib.Path(self.model.folder)
        data = (source / "model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        tensors = {name: info for name, info in json.loads(data[8:begin]).items() if name != "__metadata__"}
        files = {name: (source / name).read_bytes() for name in ("config.json", "tokenizer.json")}
        weight_map = {}
        for shard in range(2):
            name, head, content = f"model-0000{shard + 1}-of-00002.safetensors", {}, b""
            for tensor in sorted(tensors)[shard::2]:
                first, last = tensors[tensor]["data_offsets"]
                head[tensor] = {**tensors[tensor], "data_offsets": [len(content), len(content) + last - first]}
                content += data[begin + first:begin + last]
                weight_map[tensor] = name
            text = json.dumps(head).encode()
            files[name] = len(text).to_bytes(8, "little") + text + content
        files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
        for name, content in files.items():
            blob = cache / "blobs" / hashlib.sha256(content).hexdigest()
            blob.write_bytes(content)
            (snapshot / name).symlink_to(pathlib.Path("../../blobs") / blob.name)
        self.assertTrue(torch.equal(diffattn.load(snapshot).logits(self.ids), self.model.logits(self.ids)))
        words = ["--prompt", "import ", "--max-new-tokens", 4]
        self.assertEqual(answers("generate", "--model", snapshot, *words),
                         answers("generate", "--model", source, *words))

    def test_every_layout(self):
        microsoft = self.folder / "microsoft"
        diffattn.convert(self.model.folder, microsoft, to="microsoft")
        for attention in ("microsoft_v1", "microsoft_v2", "transformer", "dint", "motif_2_6b", "temperature"):
            config = {"task": "lm", "model": {"attention": attention, **SIZES}, "train": {**TRAIN, "steps": 1},
                      "data": {"tokenizer": "bytes", "train": self.folder / "corpus.txt"}}
            model = diffattn.load(diffattn.train(config, self.folder / attention)["model"])
            self.assertIsInstance(model, torch.nn.Module)
            self.assertEqual(len(model.generate_ids(self.ids.tolist(), max_new_tokens=3, stop_tokens=[])[0]), 3)
        torch.testing.assert_close(diffattn.load(microsoft).logits(self.ids), self.model.logits(self.ids), atol=1e-5,
                                   rtol=1e-5)

    def test_published_models(self):
        for name in ("motif2_a", "motif2_b", "phi4flash_a"):
            model, recorded = diffattn.load(PUBLISHED / name), recording(PUBLISHED / name)
            row = int(recorded["attention_mask"].sum(1).argmax())  # has no padding
            self.assertTrue(recorded["attention_mask"][row].all())
            logits = model.logits(recorded["input_ids"][row:row + 1])
            torch.testing.assert_close(logits[0], recorded["logits"][row], atol=1e-4, rtol=0)
            tokens = recorded["greedy.tokens"]
            self.assertEqual(model.generate_ids(recorded["greedy.prompt"].tolist(), max_new_tokens=tokens.shape[1],
                                                temperature=0, stop_tokens=[]), tokens.tolist(), name)
            model(recorded["input_ids"]).sum().backward()
            self.assertTrue(all(weight.grad is not None for weight in model.parameters()), name)
            ids = recorded["input_ids"][row].tolist()
            self.assertGreater(len(diffattn.analyze(model, prompt_ids=ids).statistics), 0)

    def test_a_torch_module_that_trains(self):
        model = diffattn.load(self.model.folder)
        self.assertEqual([name for name, _ in model.named_parameters()], list(model.state_dict()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses, before = [], model.generate("import ", max_new_tokens=8)
        for _ in range(20):
            loss = torch.nn.functional.cross_entropy(model(self.ids)[0, :-1], self.ids[0, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertEqual(model.generate("import ", max_new_tokens=4), "json")  # C++ sees the new weights
        self.assertNotEqual(before[:4], "json")
        model.load_state_dict(self.model.state_dict())
        self.assertEqual(model.generate("import ", max_new_tokens=8), before)
        model.to(torch.bfloat16)
        self.assertEqual(model(self.ids).dtype, torch.bfloat16)
        model.generate("import ", max_new_tokens=2)

    def test_classifier(self):
        rows = [{"text": "good fine " * 3, "label": "good"}, {"text": "bad poor " * 3, "label": "bad"}] * 4
        data = self.lines("labels.jsonl", rows)
        config = {"task": "classify", "model": {"attention": "microsoft_v1", **SIZES}, "train": {**TRAIN, "steps": 30},
                  "data": {"tokenizer": "bytes", "train": data, "valid": data}}
        model = diffattn.load(diffattn.train(config, self.folder / "classify")["model"])
        self.assertIsInstance(model, diffattn.Classifier)
        want = [row["label"] for row in answers("classify", "--model", model.folder, "--input", data)]
        self.assertEqual(model.classify([row["text"] for row in rows]), want)
        self.assertEqual(model.classify(rows[0]["text"]), want[0])
        self.assertEqual(sorted(model.labels), ["bad", "good"])
        model(torch.tensor([model.encode("good")])).sum().backward()
        with self.assertRaisesRegex(TypeError, "expected a causal language model, got a Classifier"):
            diffattn.Generator(model)

    def test_text_to_text(self):
        rows = [{"document": f"the {word} is here and there", "summary": word} for word in ("cat", "dog", "sun")] * 2
        data = self.lines("summaries.jsonl", rows)
        config = {"task": "summarize", "model": {"attention": "microsoft_v1", **SIZES}, "train": TRAIN,
                  "data": {"tokenizer": "bytes", "train": data, "valid": data}}
        model = diffattn.load(diffattn.train(config, self.folder / "summarize")["model"])
        self.assertIsInstance(model, diffattn.TextToText)
        want = [row["summary"] for row in answers("summarize", "--model", model.folder, "--input", data,
                                                  "--max-new-tokens", 6, "--beams", 2)]
        self.assertEqual(model.generate([row["document"] for row in rows], max_new_tokens=6, beams=2), want)
        source, target = (torch.tensor([model.encode(text)]) for text in ("the cat", "cat"))
        logits = model(source, target)
        self.assertEqual(logits.shape, (1, 3, model.config["vocab_size"]))
        logits.sum().backward()

    def test_analysis_shows_itself(self):
        analysis = diffattn.analyze(self.model, text="import json")
        self.assertEqual(len(analysis.statistics), 4)
        self.assertTrue(analysis.page.startswith("<!"))
        shown = analysis._repr_html_()
        self.assertRegex(shown, '^<iframe [^>]*sandbox="allow-scripts" srcdoc="&lt;!')
        self.assertEqual(shown.count("<"), 2)  # nothing of the page escapes from the attribute
        analysis.save(self.folder / "page.html")
        self.assertEqual((self.folder / "page.html").read_text(), analysis.page)
        with self.assertRaisesRegex(TypeError, "'tokenizer': expected None for a folder"):
            diffattn.analyze(self.model.folder, tokenizer=object(), text="x")
        with self.assertRaisesRegex(TypeError, "'model': expected a folder.*got Linear"):
            diffattn.analyze(torch.nn.Linear(2, 2), text="x")

    def test_analysis_of_transformers(self):
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as missing:
            self.skipTest(f"skipped: {missing}")
        theirs = AutoModelForCausalLM.from_pretrained(self.model.folder)

        class Bytes:
            def __call__(self, text):
                return {"input_ids": list(text.encode())}

        want = diffattn.analyze(self.model, prompt_ids=list(b"import json"))
        got = diffattn.analyze(theirs, Bytes(), "import json")
        self.assertEqual(got.statistics, want.statistics)
        self.assertIn("srcdoc", got._repr_html_())


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
