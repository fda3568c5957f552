"""Draws `curves.json` of a training run as `curves.svg`: loss and error on hard tokens, logarithmic, over millions of tokens.

    python tools/train/plot.py models/tiny/training
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 720, 360, 50
LOW, HIGH = -4.0, 1.0
SERIES = {"hard_loss": ("#1f77b4", "loss on hard tokens"), "error": ("#d62728", "error on hard tokens"), "index_loss": ("#2ca02c", "index loss")}


def y(value: float) -> float:
    level = min(max(math.log10(max(value, 1e-9)), LOW), HIGH)
    return MARGIN + (HIGH - level) / (HIGH - LOW) * (HEIGHT - 2 * MARGIN)


def line(points: list[tuple[float, float]], color: str) -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def text(a: float, b: float, words: str, color: str = "#333", anchor: str = "start") -> str:
    return f'<text x="{a:.0f}" y="{b:.0f}" fill="{color}" text-anchor="{anchor}">{words}</text>'


def draw(curves: list[dict]) -> str:
    most = max(point["tokens"] for point in curves)
    x = lambda tokens: MARGIN + tokens / most * (WIDTH - 2 * MARGIN)
    curves = [point | {"error": 1 - point["hard_accuracy"]} for point in curves]
    parts = []
    for level in range(int(LOW), int(HIGH) + 1):
        height = y(10.0**level)
        parts += [line([(MARGIN, height), (WIDTH - MARGIN, height)], "#ddd"), text(MARGIN - 6, height + 4, f"1e{level}", anchor="end")]
    for before, after in zip(curves, curves[1:]):
        if after["stage"] != before["stage"]:
            parts.append(line([(x(after["tokens"]), MARGIN), (x(after["tokens"]), HEIGHT - MARGIN)], "#bbb"))
    for i, (key, (color, name)) in enumerate(SERIES.items()):
        parts += [line([(x(p["tokens"]), y(p[key])) for p in curves], color), text(MARGIN + 190 * i, 30, name, color)]
    parts.append(text(WIDTH / 2, HEIGHT - 15, f"tokens, 0 to {most / 1e6:.0f} million; grey lines: next stage", anchor="middle"))
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" {style}>\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "curves.svg").write_text(draw(json.loads((folder / "curves.json").read_text())))
