# SPDX-License-Identifier: Apache-2.0
"""What the tests of `diffattn serve` share: small models, a running server, requests."""
import http.client
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAM = os.environ.get("DIFFATTN_PROGRAM", "diffattn")  # by default the command of an installed package
# Further options of every server and of `generate`.
OPTIONS = shlex.split(os.environ.get("DIFFATTN_TEST_SERVE", ""))
END = "<|endoftext|>"
TEMPLATE = """\
{%- for message in messages %}{{ '<' ~ message.role ~ '>' ~ message.content ~ eos_token }}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
WORDS = "the cat sat on a mat and dog ran to see what was there in old house near river £ € 😀".split()


def program(*arguments, **kwargs):
    further = OPTIONS if arguments[0] == "generate" else []
    return subprocess.run([PROGRAM, *map(str, arguments), *further], capture_output=True, timeout=300, check=False,
                          **kwargs)


def train_model(folder, steps=150, **sizes):
    """Trains a small byte model on random sentences and returns its folder, with a chat template."""
    folder = pathlib.Path(folder)
    draw = random.Random(1)
    corpus = folder / "corpus.txt"
    corpus.write_text(" ".join(draw.choice(WORDS) for _ in range(20000)), encoding="utf-8")
    settings = {"model.hidden_size": 32, "model.num_hidden_layers": 2, "model.num_attention_heads": 4,
                "model.max_position_embeddings": 512, "train.seq_len": 64, "train.batch_size": 8,
                "train.learning_rate": 5e-3, "train.warmup_steps": 5, "train.eval_every": 0, "train.steps": steps,
                "data.train": corpus, **sizes}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = program("train", "--out", folder / "run", *words)
    assert result.returncode == 0, result.stderr.decode()
    model = folder / "run/model"
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))
    return model


def without_template(model, folder):
    copy = pathlib.Path(folder) / "plain"
    shutil.copytree(model, copy)
    (copy / "tokenizer_config.json").unlink()
    return copy


class Server:
    """A running server. Use it in a `with` statement."""

    def __init__(self, model, *options, environment=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--model", str(model), "--port", "0", *map(str, options), *OPTIONS],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **(environment or {})})
        line = self.process.stdout.readline()
        if "serving on" not in line:
            self.process.wait(300)
            raise RuntimeError(f"the server did not start: {line}{self.errors()}")
        self.port = int(line.rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(300)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.process.stdout.close()
        self.log.close()

    def errors(self):
        self.log.seek(0)
        return self.log.read().decode()

    def stop(self):
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def memory(self):
        """Resident bytes of the process."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def request(self, method, path, body=None, headers=None, timeout=300):
        """Returns (status, headers, bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def post(self, path, **fields):
        """Returns (status, object)."""
        status, _, body = self.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        return status, json.loads(body)

    def complete(self, **fields):
        """Returns the object of a completion that must succeed."""
        status, answer = self.post("/v1/completions", **fields)
        assert status == 200, answer
        return answer

    def stream(self, path, **fields):
        """Returns the list of events of a stream, without [DONE], which must come."""
        status, headers, body = self.request("POST", path, json.dumps({**fields, "stream": True}))
        assert status == 200, body
        assert headers["Content-Type"] == "text/event-stream"
        events = [line[6:] for line in body.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]

    def metrics(self):
        """Returns the values of /metrics by name."""
        _, _, body = self.request("GET", "/metrics")
        values = {}
        for line in body.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name.removeprefix("diffattn_")] = float(value)
        return values

    def wait_until(self, running, waiting, seconds=300):
        """Waits for a number of running and of waiting requests. A request that has just come waits."""
        return self.wait_for(
            lambda now: (now["num_requests_running"], now["num_requests_waiting"]) == (running, waiting), seconds)

    def wait_until_idle(self, seconds=300):
        return self.wait_until(running=0, waiting=0, seconds=seconds)

    def wait_until_alone(self, seconds=300):
        """Waits until the connection of this request is the only one."""
        return self.wait_for(lambda now: now["connections"] == 1, seconds)

    def wait_until_free(self, seconds=300):
        """Waits until nothing is computed, waits or has room in the cache, and nobody is left who could send a job:
        the server may read the request of a client after the client has left."""
        return self.wait_for(
            lambda now: now["connections"] == 1 and not any(
                now[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")), seconds)

    def wait_for(self, condition, seconds=300):
        """Returns True as soon as the condition holds for the metrics, False if that takes longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition(self.metrics()):
                return True
            time.sleep(0.05)
        return False


def generate(model, prompts, new_tokens, *options):
    """The tokens of `diffattn generate`, each prompt by itself."""
    results = []
    for prompt in prompts:
        result = program("generate", "--model", model, "--prompt-ids", ",".join(map(str, prompt)), "--json",
                         "--max-new-tokens", new_tokens, *options)
        assert result.returncode == 0, result.stderr.decode()
        results.append(json.loads(result.stdout)["results"][0]["ids"])
    return results
