# SPDX-License-Identifier: Apache-2.0
"""Trains on two hosts with two processes each, cuts one off, and continues. Network namespaces stand for the hosts.

No step may be missing or twice, and all losses must be those of a run without the cut.

It needs root, because it makes two namespaces with a cable between them. They and their addresses exist only during
the test. `make test-long` runs it.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import process_jobs as one_host

ADDRESSES = ("10.213.77.1", "10.213.77.2")  # only inside the two namespaces
PORT = "29577"
PROCESSES = 2  # per host


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_hosts():
    """Makes two namespaces that see each other alone, and yields their names and interfaces."""
    names = [f"diffattn-{os.getpid()}-{i}" for i in range(2)]
    cables = [f"da{os.getpid() % 100000}{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", cables[0], "netns", names[0], "type", "veth", "peer", "name", cables[1], "netns", names[1])
        for name, cable, address in zip(names, cables, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/30", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, cables))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)  # the cable goes with it


class TwoHosts(unittest.TestCase):
    def start(self, hosts, words):
        launched = []
        for rank, (name, cable) in enumerate(hosts):
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
                       f"--node-rank={rank}", f"--nproc-per-node={PROCESSES}", f"--master-addr={ADDRESSES[0]}",
                       f"--master-port={PORT}", "-m", "diffattn", "train", *words]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cable}
            launched.append(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, start_new_session=True))
            self.addCleanup(self.end, launched[-1])
        return launched

    def end(self, process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def finish(self, processes):
        for process in processes:
            error = process.communicate(timeout=300)[1]
            self.assertEqual(process.returncode, 0, error)

    def losses(self, out):
        """Returns steps and losses in the order of metrics.jsonl."""
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [(line["step"], line["loss"]) for line in lines if "loss" in line]

    def test_a_host_that_is_cut_off(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        (folder / "run.toml").write_text(one_host.RUN)
        out = folder / "out"
        settings = ["--set", "train.shard=gradients", "--set", "train.eval_every=0",
                    "--set", "train.checkpoint_every=5"]
        begin = ["--config", str(folder / "run.toml"), *settings, "--out"]
        with two_hosts() as hosts:
            running = self.start(hosts, [*begin, str(out), "--set", "train.steps=1000000"])
            deadline = time.monotonic() + 300
            while not (out / "checkpoints" / "latest").exists():
                self.assertLess(time.monotonic(), deadline, "no checkpoint")
                time.sleep(0.2)
            ip("-n", hosts[1][0], "link", "set", hosts[1][1], "down")
            cut = time.monotonic()
            errors = []
            for process in running:
                errors.append(process.communicate(timeout=300)[1])
                self.assertNotEqual(process.returncode, 0)
            self.assertLess(time.monotonic() - cut, 180)
            self.assertRegex("".join(errors), "rank [0-3] of 4.*another process has ended")
            ip("-n", hosts[1][0], "link", "set", hosts[1][1], "up")
            saved = int((out / "checkpoints" / "latest").read_text().removeprefix("step-"))
            last = saved + 5
            self.finish(self.start(hosts, ["--resume", str(out), "--set", f"train.steps={last}"]))
            self.assertEqual((out / "checkpoints" / "latest").read_text().strip(), f"step-{last}")
            undisturbed = folder / "undisturbed"
            self.finish(self.start(hosts, [*begin, str(undisturbed), "--set", f"train.steps={last}"]))
        self.assertEqual([step for step, _ in self.losses(out)], list(range(1, last + 1)))
        self.assertEqual(self.losses(out), self.losses(undisturbed))


if __name__ == "__main__":
    unittest.main()
