# SPDX-License-Identifier: Apache-2.0
"""Tests `diffattn convert`, and that transformers reads its results."""
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

try:
    import torch
    import transformers
except ImportError as error:
    transformers = None
    WHY = f"skipped: {error}"

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
MIB = 1 << 20


def run(*arguments, **kwargs):
    return subprocess.run([PROGRAM, "convert", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **kwargs)


def write_safetensors(path, tensors):
    """Writes float32 tensors of zeros by name and shape. The data is a hole in a sparse file."""
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def diffllama(folder, hidden=16, heads=4, head_dim=4, vocabulary=8):
    """A DiffLlama of one layer whose weights are zero."""
    width = heads * head_dim
    attention, tensors = "model.layers.0.self_attn.", {}
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors[f"{attention}{name}.weight"] = [width, hidden]
    tensors[f"{attention}o_proj.weight"] = [hidden, width]
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        tensors[attention + name] = [head_dim]
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = [hidden]
    tensors["model.layers.0.mlp.gate_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"] = [
        8, hidden]
    tensors["model.layers.0.mlp.down_proj.weight"] = [hidden, 8]
    tensors["model.norm.weight"] = [hidden]
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"] = [vocabulary, hidden]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "diffllama", "hidden_size": hidden, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": heads, "head_dim": head_dim,
        "vocab_size": vocabulary}))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def distance(actual, expected):
    return ((actual - expected).abs() / expected.abs().clamp_min(1)).max().item()


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def convert(self, source, target, *arguments):
        result = run(self.folder / source, self.folder / target, *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)


class Convert(Folder):
    def test_report_as_table_and_as_json(self):
        source = diffllama(self.folder / "in")
        (source / "tokenizer.json").write_text("{}")
        file = self.folder / "report.json"
        table = run(source, self.folder / "out", "--to", "microsoft", "--report", file)
        self.assertEqual(table.returncode, 0, table.stderr)
        report = json.loads(file.read_text())
        self.assertEqual((report["from"], report["to"]), ("diffllama", "microsoft"))
        self.assertEqual(len(report["tensors"]), 17)  # 16 of the source and the weight of the head norm
        for tensor in report["tensors"]:
            self.assertIn(tensor["name"].replace(".0.", ".*."), table.stdout)
            self.assertIn(tensor["what"], table.stdout)
        self.assertIn("tokenizer.json", table.stdout)
        self.assertEqual(report["weights"], ["model.safetensors"])

    def test_exit_codes_and_sentences(self):
        diffllama(self.folder / "in")
        for arguments in (["--to", "gguf"], [], ["--to", "microsoft", "--rename", "x"],
                          ["--to", "microsoft", "--gqa", "odd"]):
            result = run(self.folder / "in", self.folder / "out", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
        for arguments, sentence in ((["--to", "llama"], "layer 0: expected lambda 0"),
                                    (["--to", "diffattn"], "expected a conversion from diffllama"),
                                    (["--to", "microsoft", "--from", "llama"], "expected a llama"),
                                    (["--to", "microsoft", "--attention-only"],
                                     "expected a motif or phi4_flash model for --attention-only, got diffllama"),
                                    (["--to", "microsoft", "--seed", "3"],
                                     "expected llama to diffllama for --seed, got diffllama to microsoft"),
                                    (["--to", "microsoft", "--report", self.folder / "no" / "file"],
                                     "No such file or directory")):
            result = run(self.folder / "in", self.folder / "out", *arguments)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn(sentence, result.stderr)
        self.assertEqual(os.listdir(self.folder), ["in"])

    def test_names_of_any_bytes(self):
        """The JSON shows bytes that are not UTF-8 as U+FFFD, and the conversion succeeds."""
        source = diffllama(self.folder / "in")
        target, file = os.fsencode(self.folder) + b"/\xff", self.folder / "report.json"
        result = subprocess.run([PROGRAM, "convert", source, target, "--to", "microsoft", "--json", "--report", file],
                                capture_output=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(os.path.isfile(target + b"/config.json"))
        self.assertEqual(json.loads(result.stdout)["target"], f"{self.folder}/\ufffd")
        self.assertEqual(file.read_bytes(), result.stdout)

    def test_a_report_inside_the_new_folder(self):
        source, target = diffllama(self.folder / "in"), self.folder / "out"
        result = run(source, target, "--to", "microsoft", "--report", target / "report.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads((target / "report.json").read_text())["to"], "microsoft")
        # Other spellings of the same folder.
        for name, file in (("a", "./a/report.json"), ("./b", "b/report.json"), ("c/", f"{self.folder}/c/report.json")):
            result = run(source, name, "--to", "microsoft", "--report", file, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue((self.folder / file).is_file(), file)

    def test_links_are_followed_without_an_option(self):
        source = diffllama(self.folder / "in")
        (source / "config.json").rename(self.folder / "elsewhere.json")
        (source / "config.json").symlink_to(self.folder / "elsewhere.json")
        result = run(source, self.folder / "out", "--to", "microsoft")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        result = run(source, self.folder / "again", "--to", "microsoft", "--follow-links")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr,
                         "warning: --follow-links is no longer needed: symbolic links are always followed\n")

    def test_memory_is_that_of_one_tensor(self):
        """The conversion moves the largest tensor row by row and holds no second copy."""
        def peak(*arguments):
            command = [PROGRAM, *map(str, arguments)]
            pid = os.posix_spawn(PROGRAM, command, os.environ, file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
            _, status, usage = os.wait4(pid, 0)
            self.assertEqual(status, 0)
            return usage.ru_maxrss * 1024
        def converted(source):
            return peak("convert", source, f"{source}_out", "--to", "microsoft")
        libraries = peak("--version")
        small = converted(diffllama(self.folder / "small"))
        largest = 64 * MIB  # of q_proj: 16384 rows of 1024
        wide = diffllama(self.folder / "wide", hidden=1024, heads=128, head_dim=128)
        grown = converted(wide) - small
        self.assertLess(grown, largest + 48 * MIB)
        self.assertLess(small + grown - libraries, largest + 64 * MIB)

    def test_a_signal_leaves_nothing_behind(self):
        for heads in (64, 128, 256, 512):  # 128 MiB to write, more if that is too fast for the signal
            diffllama(self.folder / "in", hidden=1024, heads=heads, head_dim=128)
            started = subprocess.Popen([PROGRAM, "convert", str(self.folder / "in"),
                                        str(self.folder / "out"), "--to", "microsoft"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while len(os.listdir(self.folder)) == 1 and started.poll() is None:
                time.sleep(0.001)
            started.send_signal(signal.SIGTERM)
            _, said = started.communicate(timeout=60)
            if started.returncode != 0:
                self.assertIn("stopped; nothing was written", said)
                self.assertEqual(os.listdir(self.folder), ["in"])
                return
            shutil.rmtree(self.folder / "out")
            shutil.rmtree(self.folder / "in")
        self.fail("every conversion ended before its signal came, even that of 1 GiB")


@unittest.skipIf(transformers is None, WHY if transformers is None else "")
class Transformers(Folder):
    """Folders that transformers writes and reads."""

    def llama(self, name, dtype, **changes):
        torch.manual_seed(4)
        config = transformers.LlamaConfig(**{
            "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
            "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, **changes})
        model = transformers.LlamaForCausalLM(config).eval()
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
        model.to(dtype)
        model.save_pretrained(self.folder / name, max_shard_size="20KB")
        return model

    def loaded(self, name, dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(self.folder / name, dtype=dtype).eval()

    def test_a_llama_is_the_same_function_as_diffllama_and_back(self):
        ids = (torch.arange(40).view(2, 20) * 7) % 61
        greedy = {"do_sample": False, "max_new_tokens": 8}
        for name, dtype, changes in (
                ("plain", torch.float32, {}), ("bfloat16", torch.bfloat16, {}),
                ("biases", torch.float32, {"attention_bias": True, "tie_word_embeddings": True})):
            with self.subTest(name):
                llama = self.llama(name, dtype, **changes)
                report = self.convert(name, name + "_diff", "--to", "diffllama")
                self.assertTrue(all(tensor["exact"] for tensor in report["tensors"]))
                diff = self.loaded(name + "_diff", dtype)
                self.assertEqual(type(diff).__name__, "DiffLlamaForCausalLM")
                self.convert(name + "_diff", name + "_back", "--to", "llama")
                back = self.loaded(name + "_back", dtype).state_dict()
                for key, tensor in llama.state_dict().items():
                    self.assertTrue(torch.equal(tensor, back[key]), key)
                with torch.no_grad():
                    got = diff(ids).logits
                    usual = llama(ids).logits
                    if dtype == torch.float32:
                        self.assertLess(distance(got, usual), 2e-5)
                        self.assertTrue(torch.equal(llama.generate(ids[:1], **greedy),
                                                    diff.generate(ids[:1], **greedy)))
                    else:  # at most twice the rounding error of the Llama
                        exact = llama.float()(ids).logits
                        self.assertLess(distance(got, exact), 2 * distance(usual, exact))

    def test_diffllama_of_transformers_comes_back_bitwise(self):
        torch.manual_seed(5)
        model = transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(
            vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2)).to(torch.bfloat16)
        model.save_pretrained(self.folder / "in", max_shard_size="20KB")
        self.convert("in", "microsoft", "--to", "microsoft")
        self.convert("microsoft", "back", "--to", "diffllama")
        back = self.loaded("back", torch.bfloat16).state_dict()
        for key, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, back[key]), key)

    def test_the_python_function(self):
        if "DIFFATTN_LIBRARY" not in os.environ:
            self.skipTest("skipped: DIFFATTN_LIBRARY is not set")
        if "ASAN_OPTIONS" in os.environ:
            self.skipTest("skipped: Python cannot load a library with AddressSanitizer")
        import diffattn
        diffllama(self.folder / "in")
        report = diffattn.convert(self.folder / "in", self.folder / "out", to="microsoft", max_shard_mib=1)
        self.assertEqual(len(report["tensors"]), 17)
        with self.assertRaisesRegex(diffattn.ConversionError, "--force"):
            diffattn.convert(self.folder / "in", self.folder / "out", to="microsoft")
        with self.assertRaisesRegex(diffattn.ConversionError, "for --seed"):
            diffattn.convert(self.folder / "in", self.folder / "new", to="microsoft", seed=3)
        with self.assertRaisesRegex(diffattn.ConversionError, "'x.' in its name"):
            diffattn.convert(self.folder / "in", self.folder / "new", to="microsoft", rename={"x.": "y."})


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why a test was skipped
