#!/usr/bin/env python3
"""Runs the examples of a README and compares what they print.

A ```console block holds commands behind `$ ` (continued after a backslash and inside quotes) and, below each, what it prints.
`…` in the expected text stands for anything. A command that starts the server (its first line ends in ` serve`) runs in the
background until the end, and the next command waits until it answers."""
import os, re, shlex, signal, subprocess, sys, time, urllib.request

HEALTH = "http://127.0.0.1:8000/health"
START_LIMIT = 1200  # seconds: the first command builds the release binary


def blocks(text):
    return re.findall(r"^```console\n(.*?)^```", text, re.S | re.M)


def incomplete(command):
    """An open quote, or a backslash at the end."""
    try:
        shlex.split(command)
    except ValueError:
        return True
    return command.endswith("\\")


def examples(block):
    """(command, expected output) pairs of one block."""
    command, expected, found = None, [], []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command is not None:
                found.append((command, "\n".join(expected)))
            command, expected = line[2:], []
        elif command is not None and not expected and incomplete(command):
            command += "\n" + line
        else:
            expected.append(line)
    return found + ([(command, "\n".join(expected))] if command is not None else [])


def matches(expected, printed):
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.S) is not None


def wait_until_healthy(server):
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(HEALTH, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{HEALTH} did not answer within {START_LIMIT} s")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        todo = [e for block in blocks(file.read()) for e in examples(block)]
    if not todo:
        sys.exit("no examples found")
    server, failed = None, 0
    try:
        for command, expected in todo:
            print(f"$ {command}", flush=True)
            if command.splitlines()[0].endswith(" serve"):
                server = subprocess.Popen(["bash", "-c", f"exec {command}"], start_new_session=True)
                wait_until_healthy(server)
                continue
            run = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=600)
            print(run.stdout, flush=True)
            if not matches(expected, run.stdout):
                failed += 1
                print(f"-- expected:\n{expected}\n-- status {run.returncode}", flush=True)
    finally:
        if server is not None and server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=120)
    if server is not None and server.returncode != 0:
        sys.exit(f"the server ended with status {server.returncode} after SIGTERM")
    sys.exit(f"{failed} of {len(todo)} examples differ" if failed else 0)


if __name__ == "__main__":
    main()
