"""The Kafka broker that ``tools/broker`` starts, and ports for it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

BROKER = Path(__file__).parents[2] / "tools" / "broker"


def free_port() -> int:
    """A port that nothing listens on, nor on the next, which the controller takes."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as broker, socket.socket() as controller:
            try:
                broker.bind(("127.0.0.1", port))
                controller.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port
