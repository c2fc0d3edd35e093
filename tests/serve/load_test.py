# SPDX-License-Identifier: Apache-2.0
"""Tests a server under load: greedy answers are those of `diffattn generate`, and memory does not grow.

DIFFATTN_TEST_SERVE_REQUESTS sets the number of requests of the memory test (300).
"""
import http.client
import json
import os
import random
import tempfile
import threading
import time
import unittest

import server

HOLDER = tempfile.TemporaryDirectory()
MODEL = None
PROMPTS, EXPECTED = [], []
NEW_TOKENS = 24
REQUESTS = int(os.environ.get("DIFFATTN_TEST_SERVE_REQUESTS", "300"))


def setUpModule():
    """Trains a model and computes the answers that every server must give."""
    global MODEL  # pylint: disable=global-statement
    MODEL = server.train_model(HOLDER.name, steps=250)
    draw = random.Random(5)
    common = [draw.choice(b"the cat sat on a mat ") for _ in range(140)]
    for i in range(32):
        own = list(" ".join(draw.choice(server.WORDS) for _ in range(draw.randint(1, 30))).encode())
        PROMPTS.append((common[:draw.randint(60, 140)] if i % 2 else []) + own[:120])
    # One process for each prompt alone would load torch 32 times, so a server with one row computes them.
    with server.Server(MODEL, "--max-rows", 1, "--no-prefix-sharing", "--prefill-tokens", 4096) as alone:
        for prompt in PROMPTS:
            EXPECTED.append(alone.complete(prompt=prompt, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True,
                                           return_token_ids=True)["choices"][0]["token_ids"])


def tearDownModule():
    HOLDER.cleanup()


class Client(threading.Thread):
    """Sends requests at random times. Cancels some, and notes answers that are not as expected."""

    def __init__(self, address, number, requests, wrong):
        super().__init__()
        self.address, self.draw, self.requests, self.wrong = address, random.Random(number), requests, wrong

    def run(self):
        for _ in range(self.requests):
            time.sleep(self.draw.random() * 0.05)
            index = self.draw.randrange(len(PROMPTS))
            stream = self.draw.random() < 0.5
            body = json.dumps({"prompt": PROMPTS[index], "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True,
                               "stream": stream, "return_token_ids": True})
            client = http.client.HTTPConnection("127.0.0.1", self.address, timeout=300)
            try:
                client.request("POST", "/v1/completions", body)
                if self.draw.random() < 0.2:  # goes away, at once or after a while
                    time.sleep(self.draw.random() * 0.1)
                    continue
                answer = client.getresponse()
                text = answer.read().decode()
                if stream and answer.status == 200:
                    events = [line[6:] for line in text.split("\n\n") if line]
                    ids = json.loads(events[-2])["choices"][0]["token_ids"]
                else:
                    ids = json.loads(text)["choices"][0]["token_ids"] if answer.status == 200 else text
                if ids != EXPECTED[index]:
                    self.wrong.append((index, ids))
            except Exception as error:  # pylint: disable=broad-except
                self.wrong.append((index, repr(error)))
            finally:
                client.close()


def run_clients(running, clients, requests):
    wrong = []
    threads = [Client(running.port, number, requests, wrong) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


class Load(unittest.TestCase):
    def test_the_expected_answers_are_those_of_generate(self):
        chosen = [0, 1, 7]
        got = server.generate(MODEL, [PROMPTS[i] for i in chosen], NEW_TOKENS)
        for i, ids in zip(chosen, got, strict=True):
            self.assertEqual(ids, EXPECTED[i][:len(ids)])  # generate stops at the end of the text

    def test_greedy_answers_under_load(self):
        """64 clients. Up to 16 rows of a step share kernels whose sums do not depend on the other rows."""
        settings = {
            "prefix sharing": ["--max-rows", 16],
            "no prefix sharing": ["--max-rows", 16, "--no-prefix-sharing", "--prefill-tokens", 64],
            "small cache": ["--max-rows", 16, "--cache-tokens", 1024, "--prefill-tokens", 32],
        }
        for name, options in settings.items():
            with self.subTest(name), server.Server(MODEL, "--max-queue", 1000, *options) as running:
                wrong = run_clients(running, clients=64, requests=2)
                self.assertEqual(wrong, [])
                self.assertTrue(running.wait_until_free(), running.metrics())

    def test_many_rows(self):
        """Larger batches take torch's products, which round differently. Ties may then fall either way."""
        with server.Server(MODEL, "--max-rows", 64, "--max-queue", 1000) as running:
            wrong = run_clients(running, clients=64, requests=2)
            for index, ids in wrong:
                self.assertIsInstance(ids, list, ids)
                place = next(i for i, (a, b) in enumerate(zip(ids, EXPECTED[index], strict=True)) if a != b)
                prompt = PROMPTS[index] + EXPECTED[index][:place]
                choice = running.complete(prompt=prompt, max_tokens=1, logprobs=2, temperature=0)["choices"][0]
                best = sorted(choice["logprobs"]["top_logprobs"][0].values())
                self.assertLess(best[-1] - best[-2], 1e-4, "not a tie")
            self.assertLess(len(wrong), 5)

    def test_memory_does_not_grow(self):
        with server.Server(MODEL, "--max-queue", 1000) as running:
            # The warm-up has as many clients, since a larger batch than ever before takes memory once.
            run_clients(running, clients=16, requests=max(5, REQUESTS // 80))
            self.assertTrue(running.wait_until_free(), running.metrics())
            before, begin = running.memory(), time.monotonic()
            wrong = run_clients(running, clients=16, requests=REQUESTS // 16)
            self.assertTrue(running.wait_until_free(), running.metrics())
            grown = running.memory() - before
            print(f"{REQUESTS // 16 * 16:,} requests in {time.monotonic() - begin:.0f} s, memory "
                  f"{before / 2**20:.1f} MiB {grown / 2**20:+.2f} MiB")
            self.assertLess(grown, 16 << 20, f"{grown >> 20} MiB for {REQUESTS} requests")
            for _, ids in wrong:
                self.assertIsInstance(ids, list, ids)
            self.assertEqual(running.process.poll(), None)


if __name__ == "__main__":
    unittest.main()
