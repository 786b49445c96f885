"""Python processes that are forked with their imports made, in place of those that Spark starts
anew for each stage with state of each query: a third of a second for each.

``PYSPARK_PYTHON`` is ``forks.sh`` then, which passes such a start on to a server of the process
that the tests run in, and starts all others as ever. The server ends with that process.
"""

from __future__ import annotations

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("forks.sh")
ADDRESS, PYTHON = "DOVETAIL_TESTS_FORKS", "DOVETAIL_TESTS_PYTHON"
_SERVERS: list[subprocess.Popen[bytes]] = []


def use() -> None:
    """From here on, in this process and those that it starts."""
    if ADDRESS in os.environ:
        return
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    address = str(Path(tempfile.mkdtemp(prefix="forks-")) / "socket")
    server = subprocess.Popen(
        [python, __file__, address], stdin=subprocess.PIPE, start_new_session=True
    )
    _SERVERS.append(server)  # its input is open as long as this process lives
    os.environ |= {"PYSPARK_PYTHON": str(SCRIPT), PYTHON: python, ADDRESS: address}


def serve(address: str) -> None:
    """Fork for each that asks, until the input ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        import_all()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            asking = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                become(asking)
            asking.close()
    Path(address).unlink()
    Path(address).parent.rmdir()


def import_all() -> None:
    """What a process imports that asks a stage for its state variables, but its main module."""
    import pyspark.sql.streaming.proto.StateMessage_pb2
    import pyspark.sql.streaming.stateful_processor
    import pyspark.sql.streaming.stateful_processor_api_client
    import pyspark.sql.streaming.stateful_processor_util
    import pyspark.worker  # noqa: F401

    gc.freeze()


def become(asking: socket.socket) -> None:
    """The process that was to be started, with its files, folder, environment and arguments."""
    code = 1
    try:
        size, files, *_ = socket.recv_fds(asking, 8, 3)
        with asking.makefile("rb") as sent:
            given: Any = marshal.loads(sent.read(int.from_bytes(size, "big")))
        arguments, folder, environment = given
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        asking.sendall(bytes([code & 255]))
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
