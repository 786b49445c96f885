"""Asks the server of ``forks`` for a process with these arguments, files, folder and environment,
and waits for its end. It imports what the interpreter has built in, so that it starts at once.
"""

import _socket
import marshal
import os
import sys

server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect(os.environ["DOVETAIL_TESTS_FORKS"])
given = marshal.dumps((sys.argv[1:], os.getcwd(), dict(os.environ)))  # noqa: PTH109 -- no import
files = b"".join(file.to_bytes(4, sys.byteorder) for file in range(3))
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
server.sendmsg([len(given).to_bytes(8, "big")], rights)
server.sendall(given)
code = server.recv(1)
os._exit(code[0] if code else 1)
