# SPDX-License-Identifier: Apache-2.0
"""Compares the prompts of `diffattn serve` with transformers' apply_chat_template, id for id.

Skipped where transformers is missing.
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import jinja2
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import server

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fixtures/chat"))
import make
from templates import TEMPLATES

# The API refuses an empty conversation, and begins a reply with every other one.
CONVERSATIONS = [messages for messages, prompt in make.CONVERSATIONS if messages and prompt]


def by_transformers(folder, messages):
    """Returns ids, or None if the template refuses the messages."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    except jinja2.exceptions.TemplateError:
        return None


def by_server(running, messages):
    status, answer = running.post("/v1/chat/completions", messages=messages, max_tokens=1, return_token_ids=True)
    if status == 400:
        assert "chat template refuses" in answer["error"]["message"], answer
        return None
    assert status == 200, answer
    return answer["choices"][0]["prompt_token_ids"]


class ChatTemplates(unittest.TestCase):
    def test_prompts_are_those_of_transformers(self):
        with tempfile.TemporaryDirectory() as name:
            model = server.train_model(name, steps=1)
            (model / "tokenizer_config.json").write_text(json.dumps(
                {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": server.END, "eos_token": server.END,
                 "clean_up_tokenization_spaces": False}))
            prompts, refusals = 0, 0
            for template, text in TEMPLATES.items():
                (model / "chat_template.jinja").write_text(text, encoding="utf-8")
                with server.Server(model, "--max-context", 4096, "--cache-tokens", 4096) as running:
                    for messages in CONVERSATIONS:
                        with self.subTest(template=template, messages=messages):
                            expected = by_transformers(model, messages)
                            self.assertEqual(by_server(running, messages), expected)
                            prompts, refusals = prompts + 1, refusals + (expected is None)
            self.assertEqual(prompts, len(TEMPLATES) * len(CONVERSATIONS))
            self.assertTrue(0 < refusals < prompts / 4, refusals)
            print(f"transformers {transformers.__version__}: {prompts} conversations, {refusals} of them refused")


if __name__ == "__main__":
    unittest.main()
