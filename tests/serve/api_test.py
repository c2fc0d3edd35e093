# SPDX-License-Identifier: Apache-2.0
"""Tests the endpoints of a running `diffattn serve`."""
import contextlib
import http.client
import json
import pathlib
import signal
import socket
import tempfile
import time
import unittest

import server

HOLDER = tempfile.TemporaryDirectory()
MODEL = None
SERVER = None


def setUpModule():
    global MODEL, SERVER  # pylint: disable=global-statement
    MODEL = server.train_model(HOLDER.name)
    SERVER = server.Server(MODEL, "--name", "small")


def tearDownModule():
    with SERVER:
        pass
    HOLDER.cleanup()


def name_of(data):
    """Returns the name of a token with these bytes, as the API writes it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def character_count(tokens):
    """Returns the number of characters that begin in tokens, given by their names."""
    return sum(len(name) if not name.startswith("bytes:") else name[8] not in "89ab" for name in tokens)


def raw(text, port=None, seconds=10):
    """Sends bytes and returns what comes back until the server closes or is silent for `seconds`."""
    with socket.create_connection(("127.0.0.1", port or SERVER.port), timeout=seconds) as connection:
        got = b""
        # A server that has answered may hang up, or read no further, before it has everything.
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(text)
        try:
            while piece := connection.recv(65536):
                got += piece
        except (TimeoutError, ConnectionError):
            pass
        return got


class Completions(unittest.TestCase):
    def test_greedy_text_is_that_of_generate(self):
        prompt = "the cat sat"
        result = server.program("generate", "--model", MODEL, "--prompt", prompt, "--max-new-tokens", 40, "--json")
        expected = json.loads(result.stdout)["results"][0]
        answer = SERVER.complete(model="small", prompt=prompt, max_tokens=40, temperature=0, return_token_ids=True)
        choice = answer["choices"][0]
        self.assertEqual(choice["token_ids"], expected["ids"])
        self.assertEqual(choice["text"], expected["text"])
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(answer["usage"], {"prompt_tokens": 11, "completion_tokens": 40, "total_tokens": 51})
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["model"], "small")

    def test_a_seed_gives_the_samples_of_generate(self):
        sampling = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 17}
        result = server.program("generate", "--model", MODEL, "--prompt", "a dog", "--max-new-tokens", 20, "--json",
                                "--temperature", 0.9, "--top-p", 0.95, "--top-k", 50, "--seed", 17)
        expected = json.loads(result.stdout)["results"][0]["ids"]
        for _ in range(2):
            answer = SERVER.complete(prompt="a dog", max_tokens=20, return_token_ids=True, **sampling)
            self.assertEqual(answer["choices"][0]["token_ids"], expected)
        # 40 random tokens of a text of random words: that two are equal by chance is out of the question.
        others = {SERVER.complete(prompt="a dog", max_tokens=40, ignore_eos=True)["choices"][0]["text"]
                  for _ in range(4)}
        self.assertEqual(len(others), 4, "without a seed, samples differ")

    def test_lists_and_n(self):
        answer = SERVER.complete(prompt=["the cat", [97, 32, 100]], n=2, max_tokens=5, temperature=0)
        texts = [choice["text"] for choice in answer["choices"]]
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[2], SERVER.complete(prompt="a d", max_tokens=5, temperature=0)["choices"][0]["text"])
        self.assertEqual(answer["usage"]["prompt_tokens"], 10)
        sampled = SERVER.complete(prompt="the", n=6, max_tokens=40, seed=3, ignore_eos=True)
        self.assertGreater(len({choice["text"] for choice in sampled["choices"]}), 1)

    def test_streams_are_the_same_text(self):
        fields = {"prompt": "near £ € 😀", "max_tokens": 60, "temperature": 0.8, "seed": 4, "n": 2, "ignore_eos": True}
        whole = SERVER.complete(**fields)
        events = SERVER.stream("/v1/completions", **fields, stream_options={"include_usage": True})
        for index in range(2):
            parts = [event["choices"][0] for event in events if event["choices"]
                     and event["choices"][0]["index"] == index]
            self.assertEqual("".join(part["text"] for part in parts), whole["choices"][index]["text"])
            self.assertEqual([part["finish_reason"] for part in parts][-1], "length")
            self.assertTrue(all(part["finish_reason"] is None for part in parts[:-1]))
        self.assertEqual(events[-1]["usage"], whole["usage"])
        self.assertEqual(events[-1]["choices"], [])

    def test_stop_strings(self):
        fields = {"prompt": "the cat sat", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        text = SERVER.complete(**fields)["choices"][0]["text"]
        # A text of 60 bytes has at least 15 characters. The stop string may come earlier, too.
        stop = text[10:14]
        expected = text[:text.index(stop)]
        answer = SERVER.complete(**fields, stop=["\x01", stop])
        self.assertEqual(answer["choices"][0]["text"], expected)
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        events = SERVER.stream("/v1/completions", **fields, stop=stop)
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), expected)

    def test_logprobs_and_echo(self):
        fields = {"prompt": "the cat", "max_tokens": 6, "temperature": 0, "logprobs": 3, "ignore_eos": True,
                  "return_token_ids": True}
        plain = SERVER.complete(**fields)["choices"][0]
        echoed = SERVER.complete(**fields, echo=True)["choices"][0]
        self.assertEqual(echoed["text"], "the cat" + plain["text"])
        logprobs, ids = echoed["logprobs"], [*b"the cat", *echoed["token_ids"]]
        # The model may write any byte, so a token may be a part of a character.
        names = [server.END if i == 256 else name_of(bytes([i])) for i in ids]
        self.assertEqual(logprobs["tokens"], names)
        self.assertEqual(logprobs["text_offset"], [character_count(names[:i]) for i in range(13)])
        self.assertIsNone(logprobs["token_logprobs"][0])
        for new, all_of_them in zip(plain["logprobs"]["token_logprobs"], logprobs["token_logprobs"][7:], strict=True):
            self.assertAlmostEqual(new, all_of_them, places=4)
        for token, value, top in zip(logprobs["tokens"][1:], logprobs["token_logprobs"][1:],
                                     logprobs["top_logprobs"][1:], strict=True):
            self.assertIn(len(top), (3, 4))
            self.assertAlmostEqual(top[token], value, places=5)
        for token, top in zip(plain["logprobs"]["tokens"], plain["logprobs"]["top_logprobs"], strict=True):
            self.assertEqual(token, max(top, key=top.get), "greedy")
        scored = SERVER.complete(prompt=ids, max_tokens=0, echo=True, logprobs=1)["choices"][0]
        self.assertEqual(scored["text"], echoed["text"])
        for one, two in zip(scored["logprobs"]["token_logprobs"][1:], logprobs["token_logprobs"][1:], strict=True):
            self.assertAlmostEqual(one, two, places=4)

    def test_penalties_are_those_of_generate(self):
        penalties = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.25}
        options = [word for key, value in penalties.items() for word in ("--" + key.replace("_", "-"), value)]
        result = server.program("generate", "--model", MODEL, "--prompt", "the", "--max-new-tokens", 40, "--json",
                                *options)
        expected = json.loads(result.stdout)["results"][0]["ids"]
        fields = {"prompt": "the", "max_tokens": 40, "temperature": 0, "return_token_ids": True}
        answer = SERVER.complete(**fields, **penalties)["choices"][0]["token_ids"]
        self.assertEqual(answer, expected)
        self.assertNotEqual(answer, SERVER.complete(**fields)["choices"][0]["token_ids"])

    def test_a_presence_penalty_lowers_what_has_occurred(self):
        fields = {"prompt": "the", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                  "logprobs": 20, "presence_penalty": 2}
        choice = SERVER.complete(**fields)["choices"][0]
        seen = set()
        # Log-probabilities are those before penalties: the chosen token is the best one after them.
        for name, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
            scores = {other: value - 2 * (other in seen) for other, value in top.items()}
            self.assertGreater(scores[name], max(scores.values()) - 1e-3)
            seen.add(name)

    def test_errors_name_the_field(self):
        for fields, param in (({}, "prompt"), ({"prompt": "a", "n": 0}, "n"), ({"prompt": "a", "top_p": 2}, "top_p"),
                              ({"prompt": "a" * 600}, "prompt"), ({"prompt": [300]}, "prompt"),
                              ({"prompt": "a", "wrong": 1}, "wrong"), ({"prompt": ""}, "prompt"),
                              ({"prompt": "a", "tools": 1}, "tools")):
            with self.subTest(fields=fields):
                status, answer = SERVER.post("/v1/completions", **fields)
                self.assertEqual(status, 400)
                self.assertEqual(answer["error"]["param"], param)
                self.assertEqual(answer["error"]["type"], "invalid_request_error")
                self.assertIn(param, answer["error"]["message"])
        self.assertEqual(SERVER.post("/v1/completions", prompt="a", model="gpt")[0], 404)


class Chat(unittest.TestCase):
    MESSAGES = [{"role": "system", "content": "sit"}, {"role": "user", "content": "the cat"}]

    def test_is_the_template_continued(self):
        answer = SERVER.post("/v1/chat/completions", messages=self.MESSAGES, max_tokens=20, temperature=0)[1]
        end = SERVER.post("/tokenize", prompt="x", add_special_tokens=False)[1]["tokens"]
        self.assertEqual(end, [ord("x")])
        ids = [*b"<system>sit", 256, *b"<user>the cat", 256, *b"<assistant>"]
        expected = SERVER.complete(prompt=ids, max_tokens=20, temperature=0)["choices"][0]["text"]
        self.assertEqual(answer["choices"][0]["message"], {"role": "assistant", "content": expected, "refusal": None})
        self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
        events = SERVER.stream("/v1/chat/completions", messages=self.MESSAGES, max_tokens=20, temperature=0)
        deltas = [event["choices"][0]["delta"] for event in events]
        self.assertEqual(deltas[0]["role"], "assistant")
        self.assertEqual("".join(delta.get("content", "") for delta in deltas), expected)

    def test_text_never_becomes_special_tokens(self):
        answer = SERVER.post("/v1/chat/completions", max_tokens=1,
                             messages=[{"role": "user", "content": f"a{server.END}b"}])[1]
        ids = [*b"<user>a", *server.END.encode(), *b"b", 256, *b"<assistant>"]
        self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))

    def test_logprobs(self):
        answer = SERVER.post("/v1/chat/completions", messages=self.MESSAGES, max_tokens=3, temperature=0,
                             ignore_eos=True, logprobs=True, top_logprobs=2)[1]
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 3)
        for entry in content:
            self.assertEqual(len(entry["top_logprobs"]), 2)
            self.assertEqual(entry["token"], entry["top_logprobs"][0]["token"])
            self.assertEqual(name_of(bytes(entry["bytes"])), entry["token"])

    def test_a_model_without_a_template_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            with server.Server(server.without_template(MODEL, folder)) as plain:
                status, answer = plain.post("/v1/chat/completions", messages=self.MESSAGES)
                self.assertEqual(status, 400)
                self.assertIn("chat_template.jinja", answer["error"]["message"])
                self.assertEqual(plain.post("/v1/completions", prompt="a", max_tokens=1)[0], 200)


class Endpoints(unittest.TestCase):
    def test_small_ones(self):
        status, _, body = SERVER.request("GET", "/v1/models")
        self.assertEqual((status, json.loads(body)["data"][0]["id"]), (200, "small"))
        self.assertEqual(SERVER.request("GET", "/health")[0], 200)
        tokens = SERVER.post("/tokenize", prompt="é")[1]["tokens"]
        self.assertEqual(tokens, [0xc3, 0xa9])
        self.assertEqual(SERVER.post("/detokenize", tokens=tokens)[1]["prompt"], "é")
        self.assertEqual(SERVER.request("GET", "/../etc/passwd")[0], 404)
        self.assertEqual(SERVER.request("PUT", "/v1/completions", "{}")[0], 405)

    def test_metrics(self):
        before = SERVER.metrics()
        SERVER.complete(prompt="abc", max_tokens=5, ignore_eos=True)
        after = SERVER.metrics()
        self.assertEqual(after["prompt_tokens_total"] - before["prompt_tokens_total"], 3)
        self.assertEqual(after["generation_tokens_total"] - before["generation_tokens_total"], 5)
        self.assertEqual(after["time_to_first_token_seconds_count"] - before["time_to_first_token_seconds_count"], 1)
        self.assertEqual(after["inter_token_latency_seconds_count"] - before["inter_token_latency_seconds_count"], 4)
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self.assertIn(name, after)

    def test_malformed_http(self):
        for text in (b"\r\n\r\n", b"GET\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
                     b"GET /health HTTP/1.1\r\n\r\n",  # no Host
                     b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"):
            with self.subTest(text=text[:40]):
                raw(text, seconds=1)
                self.assertEqual(SERVER.request("GET", "/health")[0], 200)
        large = b"x" * (5 << 20)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(large)
        answer = raw(head + large, seconds=300)
        self.assertIn(b" 413 ", answer[:20])


class Behaviour(unittest.TestCase):
    def test_a_key(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "key"
            path.write_text("k3y\n", encoding="utf-8")
            closed = server.Server(MODEL, "--api-key-file", path, environment={"DIFFATTN_API_KEY": "other"})
        with closed:
            self.assertEqual(closed.request("GET", "/v1/models")[0], 401)
            for key, status in (("wrong", 401), ("other", 401), ("k3y", 200)):
                headers = {"Authorization": "Bearer " + key}
                self.assertEqual(closed.request("GET", "/v1/models", headers=headers)[0], status, key)
            self.assertEqual(closed.request("GET", "/health")[0], 200)
            # The server reads such a body without storing it, so that the client gets the answer.
            self.assertEqual(closed.request("POST", "/v1/completions", b"x" * (3 << 20))[0], 401)

    def test_a_key_of_the_environment(self):
        with server.Server(MODEL, environment={"DIFFATTN_API_KEY": "v4r"}) as closed:
            self.assertEqual(closed.request("GET", "/v1/models")[0], 401)
            self.assertEqual(closed.request("GET", "/v1/models", headers={"Authorization": "Bearer v4r"})[0], 200)

    def test_listens_on_this_machine_alone(self):
        with self.assertRaises(ConnectionRefusedError):  # by another of its addresses
            socket.create_connection(("127.0.0.2", SERVER.port))

    def test_pages_of_other_sites_and_names_of_other_hosts(self):
        foreign = {"Origin": "https://evil.example"}
        passed_on = {"Host": "ai.example", "Origin": "https://ai.example"}
        for headers in (foreign, passed_on):
            self.assertEqual(SERVER.request("GET", "/v1/models", headers=headers)[0], 403)
        with server.Server(MODEL, "--cors-origin", "https://evil.example", "--public-host", "ai.example") as opened:
            for headers in ({}, foreign, passed_on):
                status, answered, _ = opened.request("GET", "/v1/models", headers=headers)
                self.assertEqual((status, answered["Access-Control-Allow-Origin"]), (200, "https://evil.example"))

    def test_a_full_queue_refuses_and_a_client_that_leaves_makes_room(self):
        # No machine finishes such a request before the third one comes.
        with server.Server(MODEL, "--max-rows", 1, "--max-queue", 1, "--max-context", 100000, "--cache-tokens",
                           100000) as small:
            body = json.dumps({"prompt": "a", "max_tokens": 90000, "ignore_eos": True, "stream": True})
            clients = []
            for _ in range(2):
                client = http.client.HTTPConnection("127.0.0.1", small.port, timeout=300)
                client.request("POST", "/v1/completions", body)
                clients.append(client)
            self.assertTrue(small.wait_until(running=1, waiting=1))
            status, headers, answer = small.request("POST", "/v1/completions", body)
            self.assertEqual(status, 429)
            self.assertEqual(headers["Retry-After"], "1")
            self.assertEqual(json.loads(answer)["error"]["type"], "rate_limit_error")
            for client in clients:
                client.close()
            self.assertTrue(small.wait_until_idle())
            self.assertEqual(small.post("/v1/completions", prompt="a", max_tokens=2)[0], 200)

    def test_requests_take_turns(self):
        """A request of many sequences does not delay one that comes later until all of them have ended."""
        with server.Server(MODEL, "--max-rows", 1, "--max-context", 100000, "--cache-tokens", 100000) as one:
            client = http.client.HTTPConnection("127.0.0.1", one.port, timeout=300)
            # The later request waits for one or two of 192 sequences, so that even a test that stands still for a
            # while between its answer and the look at the queue finds others waiting.
            client.request("POST", "/v1/completions", json.dumps(
                {"prompt": ["a"] * 3, "n": 64, "max_tokens": 1000, "ignore_eos": True}))
            self.assertTrue(one.wait_for(lambda now: now["num_requests_waiting"] > 0))
            one.complete(prompt="b", max_tokens=1)
            self.assertGreater(one.metrics()["num_requests_waiting"], 0, "the later request came last")
            client.close()
            self.assertTrue(one.wait_until_idle())

    def test_a_time_limit(self):
        with server.Server(MODEL, "--time-limit", 1, "--max-context", 100000, "--cache-tokens", 100000) as short:
            status, answer = short.post("/v1/completions", prompt="a", max_tokens=90000, ignore_eos=True)
            self.assertEqual(status, 504)
            self.assertEqual(answer["error"]["code"], "timeout")
            self.assertTrue(short.wait_until_idle())

    def test_sigterm_lets_running_requests_finish(self):
        # The signal comes right after the first token, so that almost all of the answer is missing.
        with server.Server(MODEL, "--max-context", 8000, "--cache-tokens", 8000) as ending:
            client = http.client.HTTPConnection("127.0.0.1", ending.port, timeout=300)
            client.request("POST", "/v1/completions", json.dumps(
                {"prompt": "the", "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True,
                 "stream_options": {"include_usage": True}}))
            answer = client.getresponse()
            self.assertTrue(answer.readline().startswith(b"data: "))
            ending.process.send_signal(signal.SIGTERM)
            try:
                while ending.request("GET", "/health")[0] != 503:
                    time.sleep(0.005)
                self.assertEqual(ending.post("/v1/completions", prompt="a")[0], 503)
            except (ConnectionError, http.client.HTTPException):
                pass  # it has ended already
            events = [line for line in answer.read().decode().split("\n\n") if line.strip()]
            self.assertEqual(events[-1], "data: [DONE]")
            self.assertEqual(json.loads(events[-2][6:])["usage"]["completion_tokens"], 4000)
            client.close()
            self.assertEqual(ending.process.wait(300), 0)

    def test_slow_clients_hold_nobody_up(self):
        self.assertTrue(SERVER.wait_until_alone())
        slow = [socket.create_connection(("127.0.0.1", SERVER.port)) for _ in range(50)]
        for connection in slow:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        # At least: the server may notice a little later that the connections of earlier looks have ended.
        self.assertTrue(SERVER.wait_for(lambda now: now["connections"] >= 51))
        SERVER.complete(prompt="a", max_tokens=2)
        for connection in slow:
            connection.setblocking(False)
            # A slow client has 30 s before the server hangs up. Until then there is nothing to read.
            with self.assertRaises(BlockingIOError, msg="the answer came after the slow clients had gone"):
                connection.recv(1)
            connection.close()

    def test_wrong_options(self):
        # No resolver sends a label of more than 63 bytes to the network, so none hangs or makes up an address.
        for options, message in ((["--port", 99999], "--port"), (["--host", "x" * 64 + ".invalid"], "--host"),
                                 (["--api-key-file", "/nonexistent"], "/nonexistent"),
                                 (["--max-rows", 0], "--max-rows")):
            result = server.program("serve", "--model", MODEL, *options)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(message, result.stderr.decode())
        result = server.program("serve", "--model", MODEL, "--port", SERVER.port)
        self.assertEqual(result.returncode, 1)
        self.assertIn(str(SERVER.port), result.stderr.decode())


if __name__ == "__main__":
    unittest.main()
