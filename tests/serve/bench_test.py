# SPDX-License-Identifier: Apache-2.0
"""Tests `diffattn bench serve` against our own server and against servers that misbehave."""
import json
import socket
import tempfile
import threading
import unittest

import server


def bench(url, *options):
    return server.program("bench", "serve", "--url", url, *options)


class Stub(threading.Thread):
    """Answers every connection with the same bytes and hangs up after the client."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.answer = answer
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.start()

    def run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(1 << 16)
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # a close with unread bytes would take the answer back
                        pass
                except ConnectionError:
                    pass


class BenchServe(unittest.TestCase):
    def test_measures_a_server(self):
        with tempfile.TemporaryDirectory() as folder:
            model = server.train_model(folder, steps=20)
            with server.Server(model, "--api-key", "k3y", "--name", "small") as running:
                common = ["--api-key", "k3y", "--requests", 12, "--prompt-tokens", 20, "--new-tokens", 10]
                result = bench(running.url, *common, "--rate", 200, "--spread", 0.5, "--seed", 3, "--json")
                self.assertEqual(result.returncode, 0, result.stderr)
                measured = json.loads(result.stdout)
                self.assertEqual((measured["failed"], measured["model"]), (0, "small"))
                self.assertTrue(12 * 5 <= measured["generated_tokens"] <= 12 * 15)
                for times in ("ms_first_token", "ms_between_tokens", "ms_request"):
                    self.assertLessEqual(measured[times]["p50"], measured[times]["p99"])
                    self.assertLessEqual(measured[times]["p99"], measured[times]["max"])
                self.assertAlmostEqual(measured["generated_tokens"] / measured["seconds"],
                                       measured["generated_tokens_per_second"], places=3)
                again = json.loads(bench(running.url, *common, "--spread", 0.5, "--seed", 3, "--json").stdout)
                self.assertEqual(again["generated_tokens"], measured["generated_tokens"], "lengths come from the seed")
                text = bench(running.url + "/v1/", *common, "--clients", 2).stdout.decode()
                self.assertIn("12 requests in", text)
                self.assertIn("first token", text)
                self.assertEqual(bench(running.url, "--requests", 1, "--api-key", "wrong").returncode, 1)
                result = bench(running.url, "--api-key", "k3y", "--requests", 2, "--prompt-tokens", 600, "--json")
                self.assertEqual(result.returncode, 1)
                self.assertIn("context length", json.loads(result.stdout)["first_error"])

    def test_refuses_other_machines_and_bad_addresses(self):
        for url in ("http://example.com:80", "https://127.0.0.1:1", "127.0.0.1:8000", "http://127.0.0.1:x",
                    "http://127.0.0.1:70000", "http://10.0.0.1:8000"):
            result = bench(url)
            self.assertEqual(result.returncode, 2, url)
            self.assertIn(b"--url: expected http://HOST:PORT of this machine", result.stderr)

    def test_names_servers_that_misbehave(self):
        with socket.socket() as held:  # bound, so that no other test gets the port, but nobody listens
            held.bind(("127.0.0.1", 0))
            self.assertIn(b"nobody answers at", bench(f"http://127.0.0.1:{held.getsockname()[1]}").stderr)
        for answer, message in ((b"", "got 0"), (b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nbad", "got 500"),
                                (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "a list of models"),
                                (b"SSH-2.0\r\n\r\n", "expected status 200")):
            with self.subTest(answer):
                result = bench(Stub(answer).url)
                self.assertEqual(result.returncode, 1)
                self.assertIn(message, result.stderr.decode())
        events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: {\"choi"
        result = bench(Stub(events).url, "--model", "m", "--requests", 1, "--json")
        self.assertEqual(json.loads(result.stdout)["first_error"], "the answer ended early")


if __name__ == "__main__":
    unittest.main()
