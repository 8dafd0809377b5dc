"""The command `piecemill` without the start of an interpreter: a process that has imported it forks for each call.

`command.Served` starts the server. What it is told to import takes half a second, with torch five; a fork takes
milliseconds. It has a single thread, runs nothing itself, and ends when its standard input does.

    python tests/served.py serve SOCKET MODULE...     prints a line when it listens
    python tests/served.py call SOCKET ARGUMENT...    as `piecemill ARGUMENT...`: same folder, environment, files, exit
"""

import json
import os
import socket
import sys
from typing import Any


def call(path: str, arguments: list[str]) -> int:
    """Hand over arguments, folder, environment and standard files; the exit code of the command."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        asked = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [b"f"], [0, 1, 2])
        server.sendall(json.dumps(asked).encode())
        server.shutdown(socket.SHUT_WR)
        answer = server.recv(16)
    if not answer:
        sys.exit(f"{path}: the server of the command ended")
    return int(answer)


def serve(path: str, modules: list[str]) -> None:
    """Fork for each caller until standard input ends."""
    import gc
    import importlib
    import select

    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("listening", flush=True)
        children: set[int] = set()
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
            if sys.stdin in ready:
                os._exit(0)
            caller, _ = listener.accept()
            if child := os.fork():
                children.add(child)
                caller.close()
            else:
                listener.close()
                attend(caller)


def attend(caller: socket.socket) -> None:
    """Run the command in a child, so that its exit is known however it ends."""
    _, files, _, _ = socket.recv_fds(caller, 1, 3)
    asked = json.loads(b"".join(iter(lambda: caller.recv(1 << 16), b"")))
    if child := os.fork():
        for file in files:
            os.close(file)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        caller.sendall(str(code).encode())
        os._exit(0)
    caller.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    run(asked)


def run(asked: dict[str, Any]) -> None:
    import signal
    import tempfile
    import traceback

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    tempfile.tempdir = None
    sys.argv = ["piecemill", *asked["arguments"]]
    from piecemill.__main__ import main

    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        code = call(sys.argv[2], sys.argv[3:])
        sys.stdout.flush()
        os._exit(code if code >= 0 else 128 - code)
