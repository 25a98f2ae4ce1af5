"""Memory of `headlens serve` over many requests: pages, sentences short and long, and what it refuses.

`python benchmarks/served_requests.py [--requests 1000] [--kinds short long page refused silent] [--at-once 2]` starts
`headlens serve` on the bundled model and prints the resident memory of its process after every tenth of the requests.
Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

WORDS = ("the", "old", "cat", "sleeps", "in", "a", "warm", "house", "while", "dogs", "bark", "at", "nobody")
KINDS = ("short", "long", "page", "refused", "silent")


def ask(address: str, kind: str, number: int) -> None:
    """One request; its answer is read and thrown away."""
    place, draw = urlsplit(address), random.Random(number)
    if kind == "silent":
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(b"GET /")
        return
    connection = http.client.HTTPConnection(place.netloc, timeout=600)
    words = draw.randint(3, 12) if kind == "short" else draw.randint(60, 90)
    body = json.dumps({"text": " ".join(draw.choices(WORDS, k=words)), "translation": ""})
    if kind == "page":
        connection.request("GET", place.path)
    else:
        body = body[: len(body) // 2] if kind == "refused" else body
        connection.request("POST", f"{place.path}measure", body, {"Content-Type": "application/json"})
    connection.getresponse().read()
    connection.close()


def resident(process: int) -> int:
    """Megabytes that a process has in memory."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    command = [sys.executable, "-u", "-m", "headlens_cli", "serve", "--offline"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"NO_PROXY": "*"}) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        kinds = [given.kinds[number % len(given.kinds)] for number in range(given.requests)]
        print(f"requests  MB  ({', '.join(given.kinds)}; {given.at_once} at once)\n{0:8} {resident(server.pid):4}")
        tenth = max(1, given.requests // 10)
        with ThreadPoolExecutor(given.at_once) as browsers:
            for start in range(0, given.requests, tenth):
                part = range(start, min(start + tenth, given.requests))
                list(browsers.map(lambda number: ask(address, kinds[number], number), part))
                print(f"{part.stop:8} {resident(server.pid):4}", flush=True)
        server.terminate()


if __name__ == "__main__":
    main()
