# SPDX-License-Identifier: Apache-2.0
"""Sends malformed, truncated, oversized, slow and interleaved requests to `diffattn serve`.

Each request is drawn from a seed, which a failure names. DIFFATTN_TEST_FUZZ_REQUESTS sets how many are sent (400),
DIFFATTN_TEST_FUZZ_SEED the first seed (1). Seeds that have found something stay in KEPT.
"""
import collections
import json
import os
import random
import select
import socket
import tempfile
import threading
import time
import unittest

import server

KEPT = []
FIRST = int(os.environ.get("DIFFATTN_TEST_FUZZ_SEED", "1"))
COUNT = int(os.environ.get("DIFFATTN_TEST_FUZZ_REQUESTS", "400"))
CLIENTS = 32  # at the same time
STATUSES = {200, 204, 400, 401, 403, 404, 405, 411, 413, 414, 417, 429, 431, 501, 505}
PATHS = ["/v1/completions", "/v1/chat/completions", "/attention", "/tokenize", "/detokenize", "/v1/models", "/health",
         "/metrics", "/", "/v1", "/../../etc/passwd", "/%00", "/v1/completions?x=1", "//", "*"]
VALUES = [None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, -1e308, 2**31, 2**63 - 1, 2**63, -2**63, 2**64 - 1, "", "a",
          "the cat", "x" * 5000, "\u0000", "\ud83d", "€😀",
          "<|endoftext|>", [], {}, [None], [[]], [1, 2, 3], [[1], [2]],
          ["a", "b"], {"a": 1}, [0.5], [-1], [257], [256], [10**9]]
FIELDS = ["prompt", "messages", "model", "max_tokens", "n", "temperature", "top_p", "top_k", "stop", "seed", "stream",
          "stream_options", "echo", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty",
          "repetition_penalty", "ignore_eos", "return_token_ids", "tools", "tokens", "content", "user", "logit_bias",
          "best_of", "suffix", "max_completion_tokens", "response_format", "unknown"]


def any_value(draw, depth=0):
    if depth < 3 and draw.random() < 0.2:
        if draw.random() < 0.5:
            return [any_value(draw, depth + 1) for _ in range(draw.randrange(4))]
        return {draw.choice(["role", "content", "type", "text", "x"]): any_value(draw, depth + 1) for _ in range(3)}
    return draw.choice(VALUES)


def any_body(draw):
    body = {"prompt": "the cat", "max_tokens": draw.randint(1, 6)}
    if draw.random() < 0.4:
        body = {"messages": [{"role": draw.choice(["user", "system", "assistant", "tool"]), "content": "hi"}],
                "max_tokens": draw.randint(1, 6)}
    if draw.random() < 0.3:
        body["stream"] = True
    if draw.random() < 0.1:
        body = {"tokens": [draw.randrange(260) for _ in range(draw.choice([0, 1, 5, 100, 600]))]}
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        body[draw.choice(FIELDS)] = any_value(draw)
    limited = "tokens" in body or (isinstance(body.get("max_tokens"), int) and 0 <= body["max_tokens"] < 50)
    if not limited and draw.random() < 0.9:
        body["max_tokens"] = 3
    text = json.dumps(body).encode("utf-8", "surrogatepass")
    kind = draw.random()
    if kind < 0.2:  # flipped bytes
        data = bytearray(text)
        for _ in range(draw.randint(1, 5)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    if kind < 0.3:
        return text[:draw.randrange(len(text))]
    if kind < 0.35:
        return b"[" * draw.choice([10, 1000, 100000])
    if kind < 0.37:
        return b'{"prompt": "' + b"a" * draw.choice([100000, 4 << 20, (4 << 20) + 100]) + b'"}'
    if kind < 0.4:
        return draw.randbytes(draw.randrange(300))
    return text


def any_request(draw):
    """The bytes of one request."""
    method = draw.choice(["POST"] * 20 + ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "X", "", "post"])
    body = any_body(draw)
    path = draw.choice(PATHS)
    if draw.random() < 0.7:  # the path that goes with the body
        path = PATHS[1] if b'"messages"' in body else PATHS[2] if b'"tokens"' in body else PATHS[0]
    wrong = [0, len(body) + 10, max(0, len(body) - 5), -1, 10**18, "x"]
    length = len(body) if draw.random() < 0.9 else draw.choice(wrong)
    headers = [b"Host: 127.0.0.1"] if draw.random() < 0.95 else []
    chunked = draw.random() < 0.15
    headers.append(b"Transfer-Encoding: chunked" if chunked else b"Content-Length: " + str(length).encode())
    for _ in range(draw.randrange(3)):
        headers.append(draw.choice([
            b"X: " + b"y" * draw.choice([1, 1000, 20000]), b"Expect: 100-continue", b"Connection: close",
            b"Origin: http://a.example", b"Authorization: Bearer x", b"Content-Encoding: gzip",
            b"Content-Type: text/plain", b"Content-Length: 5", b" folded", b"no colon",
            draw.randbytes(20), b"\x00: \x00", b"Range: bytes=0-10"]))
    version = draw.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/9.9", b""])
    if chunked:
        pieces = [body[i:i + 50] for i in range(0, min(len(body), 5000), 50)]
        size = draw.choice([lambda n: b"%x" % n] * 5 + [lambda n: b"zz", lambda n: b"-1", lambda n: b"f" * 20])
        body = b"".join(size(len(piece)) + b"\r\n" + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"
    return b"%s %s %s\r\n%s\r\n\r\n" % (method.encode(), path.encode(), version, b"\r\n".join(headers)) + body


def exchange(port, seed):
    """Sends one to four requests, as the seed says. Returns the first status, or None, and what is wrong, or None."""
    draw = random.Random(seed)
    requests = [any_request(draw) for _ in range(draw.choice([1, 1, 1, 2, 4]))]
    data = b"".join(requests)
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.setblocking(False)
        got, sent, leaves = b"", 0, draw.random()
        end = time.monotonic() + 0.4 + draw.random() * 0.2
        piece = draw.choice([1, 7, 100, 4096, 1 << 20]) if len(data) < 3000 else 1 << 16
        while time.monotonic() < end:
            readable, writable, _ = select.select([connection], [connection] if sent < len(data) else [], [], 0.05)
            try:
                if writable:
                    sent += connection.send(data[sent:sent + piece])
                    if leaves < 0.1 and sent > len(data) // 2:
                        return None, None  # goes away in the middle
                    if piece == 1 and sent % 64 == 0:
                        time.sleep(0.001)
                if readable:
                    more = connection.recv(65536)
                    got += more
                    if not more or (leaves < 0.2 and got):
                        break
            except ConnectionError:
                break
    if not got:
        return None, None  # it may hang up on what is no HTTP, and wait for what never comes
    if not got.startswith(b"HTTP/1."):
        return None, f"no HTTP: {got[:80]!r}"
    status = int(got[9:12])
    if status not in STATUSES and status != 100:
        return status, f"status {status}: {got[:300]!r}"
    return status, None


class Fuzz(unittest.TestCase):
    def test_requests_of_all_kinds(self):
        with tempfile.TemporaryDirectory() as folder:
            model = server.train_model(folder, steps=30)
            with server.Server(model, "--max-queue", 1000, "--time-limit", 60) as running:
                expected = running.complete(prompt="the cat", max_tokens=8, temperature=0)["choices"][0]["text"]
                begin = time.monotonic()
                statuses = self.send(running, range(FIRST, FIRST + COUNT // 4))
                self.assertTrue(running.wait_until_free(), running.metrics())
                before = running.memory()
                statuses += self.send(running, [*KEPT, *range(FIRST + COUNT // 4, FIRST + COUNT)])
                seconds = time.monotonic() - begin
                self.assertTrue(running.wait_until_idle(), "requests are left")
                self.assertTrue(running.wait_until_alone(), "connections are left")
                answer = running.complete(prompt="the cat", max_tokens=8, temperature=0)["choices"][0]["text"]
                self.assertEqual(answer, expected)
                grown = running.memory() - before
                self.assertLess(grown, 64 << 20, "memory grew")
                print(f"{statuses.total():,} connections in {seconds:.0f} s, first answers {dict(statuses)}, memory "
                      f"{before / 2**20:.1f} MiB after a quarter, {grown / 2**20:+.2f} MiB at the end")
                self.assertEqual(running.stop(), 0)

    def send(self, running, seeds):
        """Returns how often each status came first on a connection; None counts those without an answer."""
        seeds, problems, statuses, lock = list(reversed(seeds)), [], collections.Counter(), threading.Lock()

        def work():
            while True:
                with lock:
                    if not seeds or problems:
                        return
                    seed = seeds.pop()
                try:
                    status, problem = exchange(running.port, seed)
                except OSError as error:
                    status, problem = None, repr(error)
                with lock:
                    statuses[status] += 1
                if problem or running.process.poll() is not None:
                    problems.append((seed, problem, running.process.poll()))

        threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [], running.errors())
        return statuses


if __name__ == "__main__":
    unittest.main()
