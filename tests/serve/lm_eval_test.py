# SPDX-License-Identifier: Apache-2.0
"""Compares the scores of lm-evaluation-harness by `diffattn serve` (local-completions) and by transformers.

The task is made here, so nothing is downloaded. Skipped where the packages are missing.
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
try:
    import lm_eval
    from lm_eval.tasks import TaskManager
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import server

TASK = """\
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


def make_task(folder):
    rows = []
    for i, word in enumerate(server.WORDS[:12]):
        others = [server.WORDS[(i + k) % 14] for k in range(1, 4)]
        rows.append({"text": f"the {word} sat on a", "choices": [" " + word, *(" " + other for other in others)],
                     "answer": i % 4})
    data = folder / "test.jsonl"
    data.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    (folder / "words.yaml").write_text(TASK % data)


def as_llama_folder(model):
    """Gives the folder what transformers' tokenizer needs."""
    (model / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": server.END, "clean_up_tokenization_spaces": False}))


class Harness(unittest.TestCase):
    def test_scores_are_those_of_transformers(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = server.train_model(folder, **{"model.attention": "diffllama"})
            as_llama_folder(model)
            make_task(folder)
            tasks = TaskManager(include_path=str(folder), include_defaults=False)
            scores = {}
            with server.Server(model, "--name", "small") as running:
                scores["serve"] = self.evaluate(
                    "local-completions", tasks, model="small", base_url=running.url + "/v1/completions",
                    tokenizer=str(model), tokenizer_backend="huggingface", max_length=512, num_concurrent=4)
            scores["transformers"] = self.evaluate("hf", tasks, pretrained=str(model), dtype="float32", max_length=512,
                                                   device="cpu", batch_size=1)
            for ours, theirs in zip(*scores.values(), strict=True):
                self.assertEqual(len(ours), 4)
                for (p, greedy), (q, is_greedy) in zip(ours, theirs, strict=True):
                    self.assertAlmostEqual(p, q, delta=2e-3)
                    self.assertEqual(greedy, is_greedy)

    @staticmethod
    def evaluate(kind, tasks, **arguments):
        """Returns the (log-likelihood, is greedy) of every choice of every row."""
        results = lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=["words"], task_manager=tasks,
                                          log_samples=True, bootstrap_iters=0)
        samples = sorted(results["samples"]["words"], key=lambda sample: sample["doc_id"])
        return [[(float(p), str(greedy) == "True") for p, greedy in sample["filtered_resps"]] for sample in samples]


if __name__ == "__main__":
    print("transformers", transformers.__version__, "lm_eval", lm_eval.__version__)
    unittest.main()
