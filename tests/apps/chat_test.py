# SPDX-License-Identifier: Apache-2.0
"""Tests conversations: `generate --interactive` with a model whose folder has a chat template."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DIFFATTN_PROGRAM"]
RUN = ["model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=4", "train.seq_len=32",
       "train.batch_size=4", "train.learning_rate=1e-2", "train.warmup_steps=1", "train.eval_every=0",
       "train.steps=60"]
END = "<|endoftext|>"
END_ID = 256  # of the byte tokenizer; every other token is a byte
TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' and 'no' in message.content %}
        {{- raise_exception('This system message is not for me.') }}
    {%- endif %}
    {{- '<' ~ message.role ~ '>' ~ message.content ~ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
"""
HOLDER = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(HOLDER.name)
PLAIN = FOLDER / "run/model"


def program(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=120, check=False, **kwargs)


def setUpModule():
    corpus = FOLDER / "corpus.txt"
    corpus.write_text("abk" * 400)
    settings = [*RUN, f"data.train={corpus}"]
    result = program("train", "--out", FOLDER / "run", *(word for text in settings for word in ("--set", text)))
    assert result.returncode == 0, result.stderr


def tearDownModule():
    HOLDER.cleanup()


def model(name, template=TEMPLATE, tokenizer=lambda sections: None):
    """Returns a copy of the model with a chat template and a changed tokenizer.json."""
    folder = FOLDER / name
    shutil.copytree(PLAIN, folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": END}, "eos_token": END, "chat_template": template}))
    sections = json.loads((folder / "tokenizer.json").read_text())
    tokenizer(sections)
    (folder / "tokenizer.json").write_text(json.dumps(sections))
    return folder


def ids_of(messages):
    """Returns the ids of TEMPLATE with these messages."""
    text = END + "".join(f"<{role}>{content}{END}" for role, content in messages) + "<assistant>"
    ids = []
    for number, piece in enumerate(text.split(END)):
        ids += [END_ID] * (number > 0) + list(piece.encode())
    return ids


class Chat(unittest.TestCase):
    def talk(self, folder, lines, *arguments):
        result = program("generate", "--model", folder, "--interactive", "--max-new-tokens", 4, *arguments,
                         input="".join(line + "\n" for line in lines).encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def reply(self, messages):
        """Returns what the model says after a conversation, from ids, and the number of all tokens."""
        result = program("generate", "--model", PLAIN, "--prompt-ids", ",".join(map(str, ids_of(messages))),
                         "--max-new-tokens", 4, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        row = json.loads(result.stdout)["results"][0]
        return row["text"], len(row["prompt_ids"]) + len(row["ids"])

    def replies(self, turns, *opening):
        messages, replies = [*opening], []
        for turn in turns:
            messages.append(("user", turn))
            replies.append(self.reply(messages))
            messages.append(("assistant", replies[-1][0]))
        return replies

    def assert_replies(self, result, expected):
        """The model said this. It warns with the number of tokens, which tells whether it read every turn and each
        special token as one id: the conversations are longer than its 32 positions."""
        self.assertEqual(result.stdout.decode(), "".join(text + "\n" for text, _ in expected))
        counts = re.findall(rb"the text has (\d+) tokens, but the model was made for 32", result.stderr)
        self.assertEqual([int(count) for count in counts], [count for _, count in expected])

    def test_each_line_is_a_turn(self):
        turns = ["ab " * 8, "abka", "k ä"]
        first, *more = self.replies(turns)
        self.assertTrue(first[0])
        result = self.talk(model("turns"), [turns[0], "", *turns[1:], "/reset", turns[0]])
        self.assert_replies(result, [first, *more, first])

    def test_a_system_message_stays(self):
        folder = model("system")
        expected = self.replies(["ab"], ("system", "be k k k"))
        result = self.talk(folder, ["ab", "/reset", "ab"], "--system", "be k k k")
        self.assert_replies(result, 2 * expected)
        refused = program("generate", "--model", folder, "--interactive", "--system", "no", input=b"")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(b"tokenizer_config.json: key 'chat_template': line 4: the template refuses these messages: "
                      b"'This system message is not for me.'", refused.stderr)

    def test_lines_without_the_template(self):
        plain = self.talk(PLAIN, ["ab", "b"]).stdout
        self.assertEqual(self.talk(model("no_chat"), ["ab", "b"], "--no-chat").stdout, plain)
        self.assertTrue(plain.startswith(b"ab"))
        for options, code, message in (
                (["--interactive", "--system", "a"], 1, b"has no chat template, which --system needs"),
                (["--prompt", "a", "--system", "a"], 2, b"--system"),
                (["--prompt", "a", "--no-chat"], 2, b"--no-chat"),
                (["--interactive", "--system", "a", "--no-chat"], 2, b"--no-chat")):
            result = program("generate", "--model", PLAIN, *options, input=b"")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(message, result.stderr)

    def test_the_tokenizer_adds_no_tokens_of_its_own(self):
        def add_begin(sections):
            token = {"SpecialToken": {"id": END, "type_id": 0}}
            sections["post_processor"] = {
                "type": "TemplateProcessing", "single": [token, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {END: {"id": END, "ids": [END_ID], "tokens": [END]}}}

        turns = ["ab " * 8, "b"]
        self.assert_replies(self.talk(model("begin", tokenizer=add_begin), turns), self.replies(turns))

    def test_the_token_behind_a_reply_ends_it(self):
        def add_token(sections):
            sections["added_tokens"].append({"id": ord("k"), "content": "k", "single_word": False, "lstrip": False,
                                             "rstrip": False, "normalized": False, "special": True})

        template = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %} k{% endif %}{% endfor %}"
        result = self.talk(model("end", template, add_token), ["kabka"])
        self.assertEqual(result.stdout, b"b\n")  # the model goes on with kab

    def test_a_damaged_template(self):
        folder = model("damaged", "{% if a %}\n{{ b }")
        result = program("generate", "--model", folder, "--interactive", input=b"ab\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"key 'chat_template': line 2: expected ", result.stderr)
        self.talk(folder, ["ab"], "--no-chat")
        (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")  # wins
        self.talk(folder, ["ab"])

    def test_a_template_that_writes_nothing(self):
        result = program("generate", "--model", model("silent", "{# nothing #}"), "--interactive", input=b"ab\n")
        self.assertEqual(result.returncode, 1)
        expected = b"tokenizer_config.json: key 'chat_template': expected text for the conversation, got none"
        self.assertIn(expected, result.stderr)


if __name__ == "__main__":
    unittest.main()
