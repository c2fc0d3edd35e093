# SPDX-License-Identifier: Apache-2.0
"""Runs the verbs on folders of published models: Motif-2 and Phi-4-mini-flash."""
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ROOT / "tests" / "fixtures" / "published"
MODELS = ("motif2_a", "motif2_b", "phi4flash_a")
MAKER = ROOT / "benchmarks" / "random_model.py"


def run(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, **kwargs)


def peak_of(*arguments):
    """Runs the program and returns the most memory that it had, in bytes."""
    code = ("import resource, subprocess, sys\nsubprocess.run(sys.argv[1:], check=True, capture_output=True)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    result = subprocess.run([sys.executable, "-c", code, PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                            timeout=300, check=True)
    return 1024 * int(result.stdout)


def tensors_of(folder):
    """Names, types, shapes and bytes of a model's tensors."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return {name: (item["dtype"], item["shape"], data[8 + length:][slice(*item["data_offsets"])])
            for name, item in header.items() if name != "__metadata__"}


def recorded(model, name):
    data = (FOLDERS / model / "io.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    item = json.loads(data[8:8 + length])[name]
    values = data[8 + length:][slice(*item["data_offsets"])]
    rows, columns = item["shape"]
    flat = struct.unpack(f"<{rows * columns}q", values)
    return [list(flat[i * columns:(i + 1) * columns]) for i in range(rows)]


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        (cls.folder / "text.txt").write_text("A differential head subtracts one map from another. " * 40)

    def succeed(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def tiny(self, model):
        """A small model with random weights and the vocabulary of bytes."""
        out = self.folder / f"tiny_{model}"
        if not out.exists():
            subprocess.run([sys.executable, MAKER, model, out, "--tiny",
                            "--dtype", "float32"], check=True, capture_output=True)
        return out

    def test_generate_gives_the_recorded_tokens(self):
        for model in MODELS:
            prompts, expected = recorded(model, "greedy.prompt"), recorded(model, "greedy.tokens")
            out = json.loads(self.succeed("generate", "--model", FOLDERS / model, "--prompt-ids",
                                          ",".join(map(str, prompts[0])), "--temperature", 0, "--max-new-tokens",
                                          len(expected[0]), "--json"))
            tokens = out["results"][0]["ids"]
            self.assertEqual(tokens, expected[0][:len(tokens)])
            self.assertTrue(len(tokens) == 24 or tokens[-1] == 2, tokens)  # 2 ends a text

    def test_info_tells_what_a_folder_is(self):
        text = self.succeed("info", "--model", FOLDERS / "phi4flash_a")
        for part in ("phi4flash", "Mamba", "gated memory", "0, 2: Mamba", "window attention", "of weights"):
            self.assertIn(part, text)
        info = json.loads(self.succeed("info", "--model", FOLDERS / "motif2_b", "--json"))
        self.assertEqual(info["layers"], [{"kind": "attention", "layers": [0, 1, 2]}])
        self.assertEqual(info["needs"]["bfloat16"]["cache_bytes_per_token"], 3 * 2 * 4 * 16 * 2)

    def test_analyze_draws_the_layers_that_have_maps(self):
        out = json.loads(self.succeed("analyze", "--model", FOLDERS / "phi4flash_a", "--prompt-ids",
                                      ",".join(str(i + 3) for i in range(20)), "--json"))
        names = [model["name"] for model in out["models"]]
        self.assertEqual(names, ["phi4flash_a, window", "phi4flash_a, full"])
        self.assertEqual([model["layers"] for model in out["models"]], [2, 2])
        weights = tensors_of(FOLDERS / "phi4flash_a")
        for model, layers in zip(out["models"], ((1, 3), (5, 7)), strict=True):
            for found, layer in zip(model["lambda"], layers, strict=True):
                init = 0.8 - 0.6 * math.exp(-0.3 * layer)
                self.assertAlmostEqual(found["init"], init, places=6)
                q1, k1, q2, k2 = (struct.unpack("<8f", weights[f"model.layers.{layer}.attn.inner_cross_attn.lambda_"
                                                               + name][2]) for name in ("q1", "k1", "q2", "k2"))
                products = (math.exp(sum(a * b for a, b in zip(q, k, strict=True))) for q, k in ((q1, k1), (q2, k2)))
                self.assertAlmostEqual(found["heads"][0]["mean"], init + next(products) - next(products), places=5)
        self.assertIn("layers 0, 2, 4, 6 are Mamba layers and gates, which have no attention map",
                      out["models"][0]["description"])
        out = json.loads(self.succeed("analyze", "--model", FOLDERS / "motif2_b", "--prompt-ids", "5,6,7,8,9",
                                      "--json"))
        self.assertEqual([found["layer"] for found in out["models"][0]["lambda"]], [0, 1, 2])

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "AddressSanitizer manages the memory")
    def test_loading_needs_little_more_memory_than_the_weights(self):
        large = self.folder / "sambay_100m"
        subprocess.run([sys.executable, MAKER, "sambay_100m", large, "--shard-gb", "0.05"], check=True,
                       capture_output=True)
        weights = sum(file.stat().st_size for file in large.glob("*.safetensors"))
        self.assertGreater(weights, 190e6)
        for dtype, size in (("bfloat16", weights), ("float32", 2 * weights)):
            process, whole = (peak_of("generate", "--model", folder, "--prompt-ids", "5,6", "--max-new-tokens", 1,
                                      "--dtype", dtype) for folder in (self.tiny("phi4flash"), large))
            self.assertLess(whole - process, 1.3 * size, dtype)
        shutil.rmtree(large)

    def test_training_starts_from_a_folder_and_keeps_its_names(self):
        for model in ("motif_2_12_7b", "phi4flash"):
            start, run_folder = self.tiny(model), self.folder / f"run_{model}"
            config = self.folder / f"{model}.toml"
            config.write_text(f'task = "lm"\n[model]\nfrom = "{start}"\n[data]\ntrain = "{self.folder}/text.txt"\n'
                              f'valid = "{self.folder}/text.txt"\n[train]\nsteps = 6\nseq_len = 64\nbatch_size = 2\n'
                              f'learning_rate = 0.01\neval_every = 6\neval_batches = 1\ncheckpoint_every = 3\n')
            self.succeed("train", "--config", config, "--out", run_folder)
            before, after = tensors_of(start), tensors_of(run_folder / "model")
            self.assertEqual({name: item[:2] for name, item in before.items()},
                             {name: item[:2] for name, item in after.items()})
            changed = [name for name in before if before[name][2] != after[name][2]]
            self.assertGreater(len(changed), len(before) * 0.8, model)
            kept, made = (json.loads((folder / "config.json").read_text()) for folder in (start, run_folder / "model"))
            # Every key of the folder has its value, so that the vendor's code reads the same model.
            self.assertEqual({key: made.get(key) for key in kept if key != "torch_dtype"},
                             {key: kept[key] for key in kept if key != "torch_dtype"})
            layout = "phi4_flash" if model == "phi4flash" else "motif"
            self.succeed("convert", "--to", layout, run_folder / "model", self.folder / f"theirs_{model}")
            self.assertEqual(tensors_of(self.folder / f"theirs_{model}"), after)
            shutil.copy(run_folder / "model" / "tokenizer.json", start)
            first = json.loads(self.succeed("eval", "--model", start, "--data", self.folder / "text.txt", "--seq-len",
                                            64, "--json"))
            last = json.loads(self.succeed("eval", "--model", run_folder / "model", "--data",
                                           self.folder / "text.txt", "--seq-len", 64, "--json"))
            self.assertLess(last["loss"], first["loss"] - 0.5, model)
            self.succeed("generate", "--model", run_folder, "--prompt", "A differential", "--max-new-tokens", 4)

    def test_a_stopped_run_that_started_from_a_folder_continues(self):
        start = self.folder / "start"
        shutil.copytree(self.tiny("phi4flash"), start)
        config = self.folder / "stopped.toml"
        config.write_text(f'task = "lm"\n[model]\nfrom = "{start}"\n[data]\ntrain = "{self.folder}/text.txt"\n'
                          f'[train]\nsteps = 6\nseq_len = 32\nbatch_size = 2\nlog_every = 1\ncheckpoint_every = 3\n')
        whole = self.folder / "uninterrupted"
        self.succeed("train", "--config", config, "--out", whole)
        again = self.folder / "again"
        shutil.copytree(whole, again)
        shutil.rmtree(again / "model")
        self.succeed("train", "--resume", again, "--from", "step-3")
        self.assertEqual(tensors_of(again / "model"), tensors_of(whole / "model"))
        out = self.folder / "stopped"
        with subprocess.Popen([PROGRAM, "train", "--config", config, "--out", out, "--set", "train.steps=1000000"],
                              stderr=subprocess.PIPE, text=True) as process:
            while not (out / "metrics.jsonl").exists() and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        step = int((out / "checkpoints" / "latest").read_text().strip().removeprefix("step-"))
        shutil.move(start, self.folder / "elsewhere")
        refused = run("train", "--resume", out)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn(str(start), refused.stderr)
        shutil.move(self.folder / "elsewhere", start)
        self.succeed("train", "--resume", out, "--set", f"train.steps={step + 2}")
        self.assertEqual({name: item[:2] for name, item in tensors_of(out / "model").items()},
                         {name: item[:2] for name, item in tensors_of(start).items()})

    def test_bench_times_the_model_of_a_folder(self):
        for model in ("motif_2_6b", "phi4flash"):
            folder = self.tiny(model)
            point = json.loads(self.succeed("bench", "generate", "--model", folder, "--prompt", 4, "--new-tokens", 3,
                                            "--repeat", 1, "--json"))["points"][0]
            row = point["routes"][0]
            self.assertEqual((point["vocab_size"], row["route"]), (384, folder.name))
            self.assertEqual(row["weight_bytes"], sum(len(item[2]) for item in tensors_of(folder).values()))
            # On a busy machine the time of the first token may exceed that of all.
            share = row["ms_per_token"] and row["ms_read_weights"] / row["ms_per_token"]
            self.assertAlmostEqual(row["share_of_bound"], share)
            step = json.loads(self.succeed("bench", "step", "--model", folder, "--seq", 16, "--repeat", 1, "--json"))
            self.assertEqual(4 * step["points"][0]["routes"][0]["parameters"], row["weight_bytes"])
        refused = run("bench", "generate", "--model", folder, "--hidden", 64)
        self.assertEqual(refused.returncode, 2)
        self.assertRegex(refused.stderr, "--(model|hidden) excludes --(model|hidden)")

    def test_model_from_refuses_what_is_no_language_model(self):
        for setting, message in ((f"model.from={self.folder}", "config.json"),
                                 (f"model.from={FOLDERS}/motif3_gdla_a", "attention_cls")):
            result = run("train", "--out", self.folder / "none", "--set", f"data.train={self.folder}/text.txt", "--set",
                         setting)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(message, result.stderr)

    def test_hostile_folders_get_errors_that_name_the_key_or_tensor(self):
        def broken(source, name, change=None, drop=None):
            folder = self.folder / name
            shutil.copytree(source, folder)
            config = json.loads((folder / "config.json").read_text())
            config.update(change or {})
            (folder / "config.json").write_text(json.dumps(config))
            if drop:
                (folder / drop).unlink()
            return folder

        phi, motif = FOLDERS / "phi4flash_a", FOLDERS / "motif2_b"
        sharded = self.folder / "sharded"
        subprocess.run([sys.executable, MAKER, "phi4flash", sharded, "--tiny",
                        "--shard-gb", "0.0002"], check=True, capture_output=True)
        shard = sorted(file.name for file in sharded.glob("model-*"))[1]
        cases = (
            (broken(phi, "layers", {"num_hidden_layers": 6}), "num_hidden_layers"),
            (broken(phi, "more", {"num_hidden_layers": 12}), "tensor"),
            (broken(phi, "state", {"mamba_d_state": 8}), "A_log"),
            (broken(phi, "rank", {"mamba_dt_rank": "many"}), "mamba_dt_rank"),
            (broken(phi, "window", {"sliding_window": 0}), "sliding_window"),
            (broken(phi, "period", {"mb_per_layer": 3}), "mb_per_layer"),
            (broken(phi, "scaling", {"rope_scaling": {"type": "linear", "factor": 2.0}}), "rope_scaling"),
            (broken(phi, "act", {"hidden_act": "gelu"}), "hidden_act"),
            (broken(motif, "noise", {"num_noise_heads": 3}), "num_noise_heads"),
            (broken(motif, "all_noise", {"num_noise_heads": 10}), "num_noise_heads"),
            (broken(motif, "ratio", {"k_ratio": 2}), "k_ratio"),
            (broken(motif, "silu", {"hidden_act": "silu"}), "hidden_act"),
            (broken(motif, "kind", {"model_type": "phi4flash", "hidden_act": "silu", "num_hidden_layers": 4}),
             "num_kv_heads"),
            (broken(motif, "width", {"hidden_size": "48"}), "hidden_size"),
            (broken(sharded, "shards", drop=shard), shard),
            (FOLDERS / "motif3_gdla_a", "attention_cls"),
        )
        for folder, message in cases:
            result = run("generate", "--model", folder, "--prompt-ids", "5,6", "--max-new-tokens", 2)
            self.assertNotEqual(result.returncode, 0, folder)
            self.assertIn(message, result.stderr, folder)
            self.assertNotIn("Exception raised from", result.stderr, folder)


if __name__ == "__main__":
    unittest.main()
