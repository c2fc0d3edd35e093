#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares HTTP libraries: 1,000 clients each read an event every 50 ms from a small server.

    apt-get install libmicrohttpd-dev libboost-dev libcpp-httplib-dev
    python3 benchmarks/http/streams.py                      # all three; or names: microhttpd beast httplib

Prints for each library the processor time of compiling its server, the time in which all connections opened, memory per
stream (resident), threads, and processor time of the server for the events that the clients read.
"""
import os
import pathlib
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent
LIBRARIES = {"microhttpd": ["-lmicrohttpd"], "beast": [], "httplib": ["-lcpp-httplib"]}
STREAMS = 1000
SECONDS = 4.7
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def compile_server(name, program):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["g++", "-O2", "-std=c++20", *os.environ.get("CXXFLAGS", "").split(), str(FOLDER / f"{name}.cpp"),
                    "-o", program, *os.environ.get("LDFLAGS", "").split(), *LIBRARIES[name], "-pthread"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def status(process):
    """Returns resident KiB, processor seconds and threads of a process."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    ticks = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields["VmRSS"].split()[0]), sum(map(int, ticks[11:13])) / os.sysconf("SC_CLK_TCK"),
            int(fields["Threads"]))


def read_streams(port):
    """Opens all streams and reads them. Returns the seconds until all had begun, and the number of events."""
    begin = time.monotonic()
    waiting = selectors.DefaultSelector()
    for _ in range(STREAMS):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(REQUEST)
        connection.setblocking(False)
        waiting.register(connection, selectors.EVENT_READ)
    begun, opened, events = set(), None, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for key, _ in waiting.select(0.1):
            events += key.fileobj.recv(65536).count(b"data: ")
            begun.add(key.fd)
        if opened is None and len(begun) == STREAMS:
            opened = time.monotonic() - begin
    return opened, events, [key.fileobj for key in waiting.get_map().values()]


def measure(name):
    with tempfile.TemporaryDirectory() as folder:
        compiling = compile_server(name, f"{folder}/{name}")
        process = subprocess.Popen([f"{folder}/{name}"], stdout=subprocess.PIPE, text=True)
        try:
            port = int(process.stdout.readline())
            time.sleep(0.2)
            memory, processor, _ = status(process)
            opened, events, connections = read_streams(port)
            more_memory, more_processor, more_threads = status(process)
            for connection in connections:
                connection.close()
        finally:
            process.kill()
            process.wait()
    begun = f"{opened:.2f} s" if opened else "never"
    each = (more_memory - memory) / STREAMS
    print(f"{name:10s} compiled in {compiling:.1f} s; all open in {begun}; {each:.1f} KiB per stream; "
          f"{more_threads} threads; {more_processor - processor:.2f} s of processor time for {events:,} events")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or LIBRARIES:
        measure(chosen)
