"""Tasks from the `flashlane tasks` generator: training records as a stream, held-out items with their oracle."""

import json
import queue
import subprocess
import threading
from dataclasses import dataclass

import numpy as np

PAD = 2


class Stream:
    """Batches of one stage: ids [B, T + 1] and loss classes [B, T + 1], read ahead by a thread."""

    def __init__(self, binary: str, stage: int, batch: int, length: int, seed: int, threads: int):
        command = [binary, "tasks", "--stream", "--curriculum", stage, "--ctx", length, "--seed", seed, "--threads", threads, "--count", 0]
        self.process = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, bufsize=1 << 20)
        self.batch, self.width = batch, length + 1
        self.ready: queue.Queue = queue.Queue(maxsize=32)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        size = self.batch * self.width * 3
        while len(raw := self.process.stdout.read(size)) == size:
            records = np.frombuffer(raw, np.uint8).reshape(self.batch, self.width * 3)
            ids = records[:, : 2 * self.width].copy().view("<i2")
            self.ready.put((ids, records[:, 2 * self.width :].copy()))
        self.ready.put(None)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        batch = self.ready.get(timeout=60)
        if batch is None:
            raise RuntimeError("the task generator stopped")
        return batch

    def close(self) -> None:
        self.process.kill()


@dataclass
class Item:
    kind: str
    ids: list[int]
    replies: list[tuple[int, int]]
    spans: list[tuple[int, int, str, int]]


def items(binary: str, kind: str, count: int, ctx: int, seed: int, rounds: int = 3, thinking: bool = False) -> list[Item]:
    command = [binary, "tasks", "--json", "--kind", kind, "--count", count, "--ctx", ctx, "--seed", seed, "--rounds", rounds]
    out = subprocess.run([str(a) for a in command] + ["--thinking"] * thinking, stdout=subprocess.PIPE, check=True).stdout
    return [parse(json.loads(line)) for line in out.splitlines()]


def parse(record: dict) -> Item:
    replies = [(turn["start"], turn["end"]) for turn in record["turns"]]
    return Item(record["kind"], record["ids"], replies, [tuple(span) for span in record["spans"]])


def padded(batch: list[Item]) -> np.ndarray:
    """Ids [B, T + 1] with T a multiple of 128."""
    length = max(len(item.ids) for item in batch)
    width = (length + 126) // 128 * 128 + 1
    ids = np.full((len(batch), width), PAD, np.int64)
    for row, item in zip(ids, batch):
        row[: len(item.ids)] = item.ids
    return ids
