# SPDX-License-Identifier: Apache-2.0
"""Tests `diffattn serve` with the `openai` client."""
import sys
import tempfile
import unittest

try:
    import openai
except ImportError:
    print("skipped: no openai package")
    sys.exit(77)

import server

HOLDER = tempfile.TemporaryDirectory()


class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = server.train_model(HOLDER.name)
        cls.server = server.Server(cls.model, "--name", "small", "--api-key", "secret")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        with cls.server:
            pass
        HOLDER.cleanup()

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["small"])

    def test_completions(self):
        answer = self.client.completions.create(model="small", prompt="the cat", max_tokens=8, temperature=0,
                                                logprobs=2, seed=1)
        self.assertEqual(len(answer.choices[0].text), 8)
        self.assertEqual(len(answer.choices[0].logprobs.token_logprobs), 8)
        self.assertEqual(answer.usage.completion_tokens, 8)
        stream = self.client.completions.create(model="small", prompt="the cat", max_tokens=8, temperature=0,
                                                logprobs=2, stream=True, stream_options={"include_usage": True})
        text, usage, tokens, offsets = "", None, [], []
        for chunk in stream:
            text += chunk.choices[0].text if chunk.choices else ""
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].logprobs:
                tokens += chunk.choices[0].logprobs.tokens
                offsets += chunk.choices[0].logprobs.text_offset
        self.assertEqual(text, answer.choices[0].text)
        self.assertEqual(tokens, answer.choices[0].logprobs.tokens)
        self.assertEqual(offsets, answer.choices[0].logprobs.text_offset)
        self.assertEqual(usage.completion_tokens, 8)

    def test_chat(self):
        messages = [{"role": "user", "content": "the cat"}]
        answer = self.client.chat.completions.create(model="small", messages=messages, max_tokens=8, temperature=0,
                                                     logprobs=True, top_logprobs=3, n=2)
        self.assertEqual(len(answer.choices), 2)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(len(answer.choices[0].logprobs.content[0].top_logprobs), 3)
        stream = list(self.client.chat.completions.create(model="small", messages=messages, max_tokens=8, temperature=0,
                                                          stream=True, logprobs=True, top_logprobs=3))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        self.assertEqual(text, answer.choices[0].message.content)
        streamed = [entry for chunk in stream if chunk.choices[0].logprobs
                    for entry in chunk.choices[0].logprobs.content]
        whole = answer.choices[0].logprobs.content
        self.assertEqual([entry.token for entry in streamed], [entry.token for entry in whole])
        for one, other in zip(streamed, whole, strict=True):
            self.assertAlmostEqual(one.logprob, other.logprob, places=4)
            self.assertEqual(len(one.top_logprobs), 3)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="small", prompt="a", temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="other", prompt="a")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0).models.list()


if __name__ == "__main__":
    unittest.main()
