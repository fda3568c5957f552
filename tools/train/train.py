"""Trains the built-in model on the tasks of `flashlane tasks`, within a wall-clock budget on one GPU.

Stages run from short sections to whole contexts (`--stages`). The index is trained from the first step; attention is dense over
compressed rows at first and sparse later; the last steps run with the shipped roundings. The whole step, optimizer included, is one
CUDA graph per shape and rounding. Ends with a checkpoint, `curves.json` and an evaluation.

    python tools/train/train.py --binary target/release/flashlane --out OUT --seconds 500
"""

import argparse
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import evaluate
import export
from config import Config
from data import PAD, Stream
from model import Model, Tables, logits
from optim import Optimizer
from rounding import straight_through

CLASS_WEIGHTS = [0.02, 0.2, 1.0, 0.0]
BALANCE_WEIGHT = 0.01
BIAS_STEP = 1e-3


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", required=True, help="flashlane binary that generates the tasks")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--seconds", type=float, default=500, help="wall-clock budget of everything")
    p.add_argument("--evaluation", type=float, default=60, help="part of the budget kept for the evaluation")
    p.add_argument("--stages", default="0:1024:0.05,1:1024:0.10,2:1024:0.45,3:4096:0.40", help="curriculum:length:share of training")
    p.add_argument("--tokens", type=int, default=16384, help="tokens per step")
    p.add_argument("--sparse", type=float, default=0.5, help="share of training with dense compressed rows")
    p.add_argument("--decay", type=float, default=0.45, help="share of training over which the rates fall to zero")
    p.add_argument("--rounded", type=float, default=0.92, help="share of training before the shipped roundings")
    p.add_argument("--adam", type=float, default=2e-3)
    p.add_argument("--muon", type=float, default=0.012)
    p.add_argument("--ratios", default="", help="compress ratios of the layers, to try another order")
    p.add_argument("--resume", type=Path, help="checkpoint folder to start from")
    p.add_argument("--device", default="cuda", help="`cpu` runs a few steps as a test; with --eager")
    p.add_argument("--eager", action="store_true", help="no compilation: slower steps, but a minute and a half earlier")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--items", type=int, default=300, help="held-out items of each kind")
    p.add_argument("--threads", type=int, default=6)
    p.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: by time)")
    return p.parse_args()


class Log:
    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.start = float(os.environ.get("TRAIN_START", time.time()))
        self.file = (folder / "log.txt").open("a")
        self.folder, self.curves = folder, []

    def elapsed(self) -> float:
        return time.time() - self.start

    def say(self, *parts) -> None:
        text = f"[{self.elapsed():6.1f}] " + " ".join(map(str, parts))
        print(text, flush=True)
        self.file.write(text + "\n")
        self.file.flush()

    def point(self, **values) -> None:
        self.curves.append(values)
        self.say(" ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()))

    def save(self) -> None:
        (self.folder / "curves.json").write_text(json.dumps(self.curves))


class Step:
    """Forward, backward and update at one shape; captured once, then replayed."""

    def __init__(self, model: Model, optimizer: Optimizer, batch: int, length: int, eager: bool):
        self.model, self.optimizer = model, optimizer
        self.tables = Tables(batch, length, model.device)
        buffer = lambda: torch.zeros(batch, length + 1, dtype=torch.long, device=model.device)
        self.ids, self.classes = buffer(), buffer()
        self.dense, self.rounded = torch.tensor(True, device=model.device), torch.tensor(0.0, device=model.device)
        self.bias_step = torch.tensor(BIAS_STEP, device=model.device)
        self.weights = torch.tensor(CLASS_WEIGHTS, device=model.device)
        self.on_gpu = torch.device(model.device).type == "cuda"
        self.loss = token_loss if eager else torch.compile(token_loss, fullgraph=True, dynamic=False)
        self.graphs: dict[bool, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def feed(self, ids: np.ndarray, classes: np.ndarray) -> None:
        self.ids.copy_(torch.from_numpy(ids))
        self.classes.copy_(torch.from_numpy(classes))

    def eager(self, shipped: bool) -> torch.Tensor:
        """One step; returns loss, loss and accuracy on hard tokens, gradient norm, index loss and the least expert load."""
        model = self.model
        targets = self.ids[:, 1:].flatten()
        weights = self.weights[self.classes[:, 1:].flatten()] * (targets != PAD)
        layers = straight_through(model.layers) if shipped else None
        x, index, loads, balance = model.forward(self.ids[:, :-1], self.tables, self.dense, self.rounded, torch.bfloat16, layers)
        loss, hard_loss, hard_right = self.loss(x, targets, weights, model.top, model.c)
        index_loss, scored = sum(index), range(model.c.hash_layers, model.c.layers)
        (loss + index_loss + BALANCE_WEIGHT * sum(balance[i] for i in scored)).backward()
        norm = self.optimizer.step()
        with torch.no_grad():
            for i in scored:
                model.bias[i].add_(torch.sign(loads[i].mean() - loads[i]) * self.bias_step)
            least = torch.stack([loads[i] for i in scored]).min()
        return torch.stack([t.detach().float() for t in (loss, hard_loss, hard_right, norm, index_loss, least)])

    def capture(self, shipped: bool) -> None:
        """Two warm-up steps, which also compile, then the graph. The rates are zero meanwhile. Nothing on a CPU."""
        if not self.on_gpu:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.optimizer.zero()
                self.eager(shipped)
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.eager(shipped)
        self.graphs[shipped] = graph, out

    def run(self, shipped: bool) -> torch.Tensor:
        if not self.on_gpu:
            self.optimizer.zero()
            return self.eager(shipped)
        graph, out = self.graphs[shipped]
        graph.replay()
        return out


def token_loss(x, targets, weights, top, c):
    """Weighted cross entropy, and loss and accuracy on hard tokens."""
    scores = logits(x, top, c)
    each = F.cross_entropy(scores, targets, reduction="none")
    hard = (weights > 0.9).float()
    count = hard.sum() + 1e-6
    right = ((scores.argmax(-1) == targets) * hard).sum() / count
    return (each * weights).sum() / (weights.sum() + 1e-6), (each.detach() * hard).sum() / count, right


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args, self.log = args, Log(args.out)
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        torch._dynamo.config.recompile_limit = 64
        config = Config(ratios=tuple(map(int, args.ratios.split(",")))) if args.ratios else Config()
        self.model = Model(config, args.device, args.seed)
        if args.resume:
            export.load(self.model, args.resume)
        self.evaluator = evaluate.Evaluator(self.model, torch.bfloat16)
        if not args.eager:
            self.model.compile()
        self.optimizer = Optimizer(self.model)
        self.stages = [(int(s), int(t), float(f)) for s, t, f in (x.split(":") for x in args.stages.split(","))]
        self.steps: dict[int, Step] = {}
        self.suites: list[evaluate.Suite] = []
        threading.Thread(target=self.make_items, daemon=True).start()

    def make_items(self) -> None:
        make = lambda *a, **k: self.suites.append(evaluate.Suite(self.args.binary, *a, **k))
        make(700, self.args.items)
        make(300, self.args.items // 2, thinking=True)
        make(1700, self.args.items, rounds=4)
        make(3000, self.args.items // 2, rounds=6)
        self.suites += evaluate.bars(self.args.binary, self.args.items)

    def stream(self, stage: int) -> Stream:
        curriculum, length, _ = self.stages[stage]
        return Stream(self.args.binary, curriculum, self.args.tokens // length, length, self.args.seed * 1000 + 17 * stage, self.args.threads)

    def prepare(self) -> None:
        """Compiles and captures every shape before the clock of the schedule starts."""
        self.optimizer.set_rates(0.0, 0.0, 0.0)
        for stage, (_, length, _) in enumerate(self.stages):
            if length not in self.steps:
                stream = self.stream(stage)
                step = self.steps[length] = Step(self.model, self.optimizer, self.args.tokens // length, length, self.args.eager)
                step.bias_step.zero_()
                step.feed(*stream.next())
                stream.close()
                if self.args.rounded > 0:
                    step.capture(False)
                if self.args.rounded < 1:
                    step.capture(True)
                step.bias_step.fill_(BIAS_STEP)
                peak = torch.cuda.max_memory_allocated() / 2**30 if step.on_gpu else 0
                self.log.say(f"length {length}: captured, {peak:.1f} GiB")
        self.reset_moments()

    def reset_moments(self) -> None:
        for state in self.optimizer.adam.state.values():
            for tensor in state.values():
                tensor.zero_()
        for buffer in self.optimizer.momentum:
            buffer.zero_()

    def train(self) -> None:
        begin, budget = self.log.elapsed(), self.args.seconds - self.args.evaluation - self.log.elapsed()
        self.log.say(f"training for {budget:.0f} s")
        share, stage, done, tokens, noted, saved = 0.0, -1, 0, 0, 0.0, 0
        ends = np.cumsum([f for _, _, f in self.stages]) / sum(f for _, _, f in self.stages)
        streams = [self.stream(i) for i in range(len(self.stages))]
        while share < 1 and not (self.args.steps and done >= self.args.steps):
            if share >= (ends[stage] if stage >= 0 else 0):
                stage += 1
                self.log.say(f"stage {self.stages[stage]} at step {done}")
            turn = self.turn(stage, done)
            step, shipped = self.steps[self.stages[turn][1]], share >= self.args.rounded
            self.set_schedule(step, share, done, shipped)
            step.feed(*streams[turn].next())
            out = step.run(shipped)
            done, tokens = done + 1, tokens + self.args.tokens
            if done % 20 == 0:
                share = (self.log.elapsed() - begin) / budget
                if self.log.elapsed() - noted > 6:
                    noted = self.log.elapsed()
                    self.note(out, done, tokens, share, stage)
                if share > 0.5 + 0.25 * saved:
                    saved += 1
                    self.save()
        self.log.say(f"{done} steps, {tokens / 1e6:.1f} M tokens, {tokens / (self.log.elapsed() - begin) / 1e3:.0f} k tokens/s")
        for each in streams:
            each.close()
        self.save()

    def turn(self, stage: int, done: int) -> int:
        """The last stage gives every third step to the one before: short contexts must not be forgotten."""
        return stage - 1 if stage and stage == len(self.stages) - 1 and done % 3 == 0 else stage

    def set_schedule(self, step: Step, share: float, done: int, shipped: bool) -> None:
        factor = min(1.0, (done + 1) / 150) * min(1.0, (1 - share) / self.args.decay + 0.01)
        self.optimizer.set_rates(factor, self.args.adam, self.args.muon)
        step.dense.fill_(share < self.args.sparse)
        step.rounded.fill_(float(shipped))

    def note(self, out: torch.Tensor, done: int, tokens: int, share: float, stage: int) -> None:
        loss, hard_loss, hard_right, norm, index, least = out.tolist()
        self.log.point(share=round(share, 3), step=done, tokens=tokens, stage=stage, loss=loss, hard_loss=hard_loss, hard_accuracy=hard_right,
                       gradient=norm, index_loss=index, least_load=least)

    def save(self) -> None:
        export.save(self.model, self.args.out / "checkpoint")
        self.log.save()

    def evaluate(self) -> None:
        """All suites, then knock-outs and roundings on the first one, as far as the budget goes."""
        results = {}

        def note(name: str, suite: evaluate.Suite | evaluate.Bar, **how) -> None:
            results[name] = self.evaluator.score(suite, **how)
            (self.args.out / "evaluation.json").write_text(json.dumps(results, indent=1))

        for suite in list(self.suites):
            note(suite.name, suite)
            self.log.say("evaluation", suite.name, evaluate.line(results[suite.name]))
        ways = evaluate.knock_outs(self.model) | evaluate.roundings(self.model)
        for name, how in ways.items():
            if self.log.elapsed() > self.args.seconds - 2 or not self.suites:
                break
            note(name, self.suites[0], **how)
            self.log.say("with", name, evaluate.line(results[name]))


def main() -> None:
    trainer = Trainer(arguments())
    trainer.log.say(f"{sum(p.numel() for p in trainer.optimizer.parameters) / 1e6:.2f} M parameters, ratios {trainer.model.c.ratios}")
    trainer.prepare()
    trainer.train()
    trainer.evaluate()


if __name__ == "__main__":
    main()
