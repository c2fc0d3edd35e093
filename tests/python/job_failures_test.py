# SPDX-License-Identifier: Apache-2.0
"""Damages jobs of several processes: their settings, files, ports and processes. Checks messages and restarts."""
import concurrent.futures
import datetime
import os
import pathlib
import signal
import socket
import sys
import time
import unittest
import unittest.mock

import torch
from process_jobs import ENDED, PATIENCE, PROGRAM, RUN, WAIT, Jobs, free_port

from diffattn import distributed


def checkpoint_step(latest):
    return int(latest.read_text().removeprefix("step-"))


class Failures(Jobs):
    def torchrun(self, *words):
        """Starts torchrun with two processes of `train`."""
        return self.popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1",
             "-m", "diffattn", "train", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1", "DIFFATTN_TIMEOUT": str(PATIENCE),
                 "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(WAIT)})

    def test_processes_that_cannot_share_tokens(self):
        out = str(self.folder / "out")
        for setting, message in (("train.context_parallel=3", "expected a divisor of the 2 processes, got 3"),
                                 ("task=classify", 'expected 1 for task = "classify"'),
                                 ("model.attention=introspective", "does not share the tokens of a row"),
                                 ("model.attention=dint", "does not share the tokens of a row")):
            words = ["--config", str(self.file), "--out", out, "--set", "train.context_parallel=2", "--set", setting]
            for code, _, error in self.finish(self.start(2, lambda rank, words=words: words)):
                self.assertIn(code, (1, 2))
                self.assertIn(message, error)

    def test_a_damaged_part_is_named(self):
        out = self.train("out", 2, "train.shard=gradients", "train.steps=10")
        part = out / "checkpoints" / "step-10" / "rank-00001" / "optimizer.safetensors"
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        for code, _, error in self.finish(self.start(2, lambda rank: ["--resume", str(out)])):
            self.assertEqual(code, 1, error)
        results = self.finish([self.alone("--resume", str(out))])
        self.assertEqual(results[0][0], 1)
        self.assertIn("rank-00001/optimizer.safetensors", results[0][2])

    def test_a_rank_that_cannot_write_its_part(self):
        out = self.train("out", 2, "train.shard=gradients", "train.steps=10")
        results = self.finish(self.start(
            2, lambda rank: ["--resume", str(out), "--set", "train.steps=20"],
            prefix_of=lambda rank: ["prlimit", "--fsize=4096"] if rank == 1 else []))
        self.assertEqual([code for code, _, _ in results], [1, 1], results)
        self.assertIn("another process could not write its part of the checkpoint", results[0][2])
        self.assertIn("rank-00001/optimizer.safetensors", results[1][2])
        self.assertEqual((out / "checkpoints" / "latest").read_text().strip(), "step-10")
        self.train("out", 2, "train.steps=20", resume=True)  # continues from the last whole checkpoint

    def test_a_rank_that_runs_out_of_memory(self):
        limited = ["env", "LD_PRELOAD=" + os.environ["DIFFATTN_ALLOCATION_LIMIT"],
                   f"DIFFATTN_TEST_ALLOCATION={1 << 24}"]
        self.write_text()
        words = ["--config", str(self.file), "--out", str(self.folder / "out"), "--set", "train.batch_size=256",
                 "--set", "train.seq_len=1024"]
        results = self.finish(self.start(2, lambda rank: words, prefix_of=lambda rank: limited if rank == 1 else []))
        self.assertEqual([code for code, _, _ in results], [1, 4], results)
        self.assertIn(ENDED, results[0][2])
        self.assertRegex(results[1][2], r"diffattn: rank 1 of 2: .*\ndiffattn: To use less memory, lower "
                         r"train.batch_size .*\n$")

    def test_compare_with_a_rank_that_fails(self):
        self.write_text()
        results = self.finish(self.start(2, lambda rank: [
            "--config", str(self.file), "--set", "train.steps=3", "--as-given", "--models",
            "diffllama,transformer:data.valid_fraction=0"], [*PROGRAM, "compare"]))
        self.assertEqual([code for code, _, _ in results], [1, 2], results)
        self.assertIn(ENDED, results[0][2])
        self.assertIn("rank 1 of 2: data.valid_fraction: expected validation data to compare models", results[1][2])

    def test_processes_that_do_not_meet(self):
        def words(rank):
            return ["--config", str(self.file), "--out", str(self.folder / "out")]

        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            (code, _, error), = self.finish(self.start(2, words, ranks=[0], port=port))
            self.assertEqual(code, 1)
            self.assertIn(f"rank 0 of 2: MASTER_PORT: port {port} of 127.0.0.1 is in use by another process", error)
        (code, _, error), = self.finish(self.start(2, words, ranks=[1], DIFFATTN_TIMEOUT="2"))
        self.assertEqual(code, 1)
        self.assertRegex(error, "rank 1 of 2: rank 0 is missing: nobody answered at 127.0.0.1:[0-9]+ within 2 s")

    def test_missing_ranks_are_named(self):
        # Ranks as threads begin to wait at the same time. Processes of a busy machine start many seconds apart.
        size, seconds = 4, datetime.timedelta(seconds=5)
        where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        with unittest.mock.patch.dict(os.environ, where):
            stores = {rank: distributed._open_store(rank, size, seconds) for rank in (0, 2)}
            with concurrent.futures.ThreadPoolExecutor(len(stores)) as ranks:
                waiting = [ranks.submit(distributed._meet, store, rank, size, seconds)
                           for rank, store in stores.items()]
            for rank in waiting:
                with self.assertRaisesRegex(
                        RuntimeError, "rank 1, 3 of 4 did not come to 127.0.0.1:[0-9]+ within 5 s"):
                    rank.result()

    def test_attempts_that_share_a_store(self):
        # The agents of torchrun serve one store to all attempts, and each counts the restarts of its own machine.
        port = free_port()
        store = torch.distributed.TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)
        agents = dict(command=[*PROGRAM, "info"], port=port, TORCHELASTIC_USE_AGENT_STORE="True")
        # An attempt in which rank 0 does not come leaves its keys.
        (code, _, error), = self.finish(self.start(2, lambda rank: [], ranks=[1], DIFFATTN_TIMEOUT="3", **agents))
        self.assertEqual(code, 1)
        self.assertRegex(error, "rank 1 of 2: rank 0 of 2 did not come to 127.0.0.1:[0-9]+ within 3 s")
        for counts in ((1, 0), (0, 1), (0, 1)):
            jobs = [self.start(2, lambda rank: [], ranks=[rank], TORCHELASTIC_RESTART_COUNT=str(counts[rank]), **agents)
                    for rank in range(2)]
            for code, _, error in self.finish([process for job in jobs for process in job]):
                self.assertEqual(code, 0, error)
        self.assertGreater(store.num_keys(), 0)

    def test_settings_of_the_group(self):
        own, shared, none = ["one 5f", "one 6a", "two 77"], ["one 5f", "two 77", "two 77"], ["", ""]
        self.assertEqual(distributed.backend_of(own, nccl=True), "cpu:gloo,cuda:nccl")
        self.assertEqual(distributed.backend_of(own, nccl=False), "cpu:gloo")
        self.assertEqual(distributed.backend_of(none, nccl=True), "cpu:gloo")
        self.assertEqual(distributed.backend_of([*own, ""], nccl=True), "cpu:gloo")
        self.assertEqual(distributed.backend_of(shared, nccl=True), "cpu:gloo")
        self.assertFalse(distributed.share_gpus(own))
        self.assertFalse(distributed.share_gpus(none))
        self.assertTrue(distributed.share_gpus(shared))
        self.assertEqual(distributed.timeout_of({}), 60)
        self.assertEqual(distributed.timeout_of({"DIFFATTN_TIMEOUT": "600"}), 600)
        for text in ("0", "a minute", "-1"):
            with self.assertRaisesRegex(RuntimeError, "DIFFATTN_TIMEOUT: expected a number of seconds above 0, got"):
                distributed.timeout_of({"DIFFATTN_TIMEOUT": text})

    def test_every_rank_knows_the_gpus_of_all(self):
        # Each process sees one GPU, as with `torchrun --virtual-local-rank`, and two of the three see the same.
        store, seconds = torch.distributed.HashStore(), datetime.timedelta(seconds=WAIT)
        names = ["one 5f", "two 77", "two 77"]
        with concurrent.futures.ThreadPoolExecutor(len(names)) as ranks:
            found = list(ranks.map(
                lambda rank: distributed.gpus_of_all(store, rank, len(names), names[rank], seconds), range(len(names))))
        self.assertEqual(found, [names] * 3)
        with self.assertRaises(RuntimeError):
            distributed.gpus_of_all(store, 0, 4, "one 5f", datetime.timedelta(seconds=0.1))

    def test_a_folder_that_holds_a_run(self):
        out = self.train("out", 2, "train.steps=2", "train.checkpoint_every=2", "train.eval_every=0")
        results = self.finish(self.start(2, lambda rank: ["--config", str(self.file), "--out", str(out)]))
        self.assertEqual([code for code, _, _ in results], [2, 1], results)
        self.assertIn("expected a folder without a run, got one that holds a run", results[0][2])
        self.assertIn(ENDED, results[1][2])

    def test_batches_that_do_not_divide(self):
        out = str(self.folder / "out")
        for code, _, error in self.finish(self.start(2, lambda rank: [
                "--config", str(self.file), "--out", out, "--set", "train.batch_size=5"])):
            self.assertEqual(code, 2)
            self.assertIn("train.batch_size: expected a multiple of the 2 processes, got 5", error)

    def test_different_run_files(self):
        out = str(self.folder / "out")
        for code, _, error in self.finish(self.start(2, lambda rank: [
                "--config", str(self.file), "--out", out, "--set", f"seed={6 + rank}"])):
            self.assertEqual(code, 1)
            self.assertIn("expected the same on all ranks, got another one on rank 1 than on rank 0", error)
        out = self.train("out", 1, "train.steps=1", "train.eval_every=0")
        new, old = ["--config", str(out / "config.toml"), "--out", str(self.folder / "new")], ["--resume", str(out)]
        for code, _, error in self.finish(self.start(2, lambda rank: old if rank else new)):
            self.assertEqual(code, 1)
            self.assertIn("--resume, --from, --change-batch-size or --dry-run: expected the same on all ranks", error)

    def test_the_others_stop_when_a_rank_is_killed(self):
        out = self.folder / "out"
        processes = self.start(2, lambda rank: ["--config", str(self.file), "--out", str(out), "--set",
                                                "train.steps=1000000", "--set", "train.eval_every=0"])
        self.wait_for(out / "checkpoints" / "latest")
        processes[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for rank, (code, _, error) in enumerate(self.finish(processes)):
            if rank == 1:
                continue
            self.assertEqual(code, 1, error)
            self.assertRegex(error, f"rank {rank} of 2.*{ENDED}")
        self.assertLess(time.monotonic() - killed, 60)  # DIFFATTN_TIMEOUT is longer
        self.assertTrue((out / "checkpoints" / "latest").exists())

    def test_torchrun_restarts_a_run_whose_process_is_killed(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "config.toml").write_text(RUN)
        latest = out / "checkpoints" / "latest"
        run = self.torchrun("--resume", str(out), "--set", "train.steps=1000000", "--set", "train.eval_every=0",
                            "--set", "train.shard=gradients")
        self.wait_for(latest)
        workers = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        self.assertEqual(len(workers), 2)
        os.kill(int(workers[1]), signal.SIGKILL)
        # Rank 0 may just finish another checkpoint, but not two.
        killed = checkpoint_step(latest)
        self.wait_until(lambda: checkpoint_step(latest) >= killed + 20, "no checkpoint after the restart")
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=PATIENCE)
        self.assertRegex(error, "continues after step [1-9][0-9]*")
        self.assertRegex(error, "stopped at step [0-9]+; continue with")

    def test_torchrun_stops_at_sigterm_with_a_checkpoint(self):
        out = self.folder / "out"
        run = self.torchrun("--config", str(self.file), "--out", str(out), "--set", "train.steps=1000000", "--set",
                            "train.checkpoint_every=1000000", "--set", "train.eval_every=0")
        self.wait_for(out / "metrics.jsonl")
        time.sleep(0.5)
        run.send_signal(signal.SIGTERM)
        _, error = run.communicate(timeout=PATIENCE)
        self.assertRegex(error, "stopped at step [0-9]+; continue with")
        self.assertTrue((out / "checkpoints" / "latest").exists(), error)


if __name__ == "__main__":
    unittest.main()
