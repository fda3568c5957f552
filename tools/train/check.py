"""Compares this package's forward pass with `transformers`' DeepseekV4ForCausalLM on the same random weights, in float32.

A tie of index scores may go either way, so a few tokens may differ: 99 of 100 must agree to the tolerance.

    python tools/train/check.py
"""

import torch

from config import Config
from export import hf_state, state
from model import Model, Tables, logits

TOLERANCE = 1e-4


def transformers_model(model: Model):
    from transformers.models.deepseek_v4 import DeepseekV4Config, modeling_deepseek_v4

    keys = {k: v for k, v in model.c.config_json().items() if k not in ("architectures", "model_type", "torch_dtype")}
    keys["compress_ratios"] = list(model.c.ratios)
    config = DeepseekV4Config(**keys, attn_implementation="eager", experts_implementation="eager")
    other = modeling_deepseek_v4.DeepseekV4ForCausalLM(config).float().eval()
    report = other.load_state_dict(hf_state(state(model, rounded=False), model.c.layers, model.c.experts), strict=False)
    unset = [key for key in report.missing_keys if "rotary" not in key]
    if unset or report.unexpected_keys:
        raise SystemExit(f"names differ: missing {unset[:5]}, unexpected {report.unexpected_keys[:5]}")
    return other


@torch.no_grad()
def differences(length: int = 640, device: str = "cpu") -> torch.Tensor:
    """For each token, the largest logit difference over its largest logit."""
    torch.manual_seed(0)
    model = Model(Config(), device, seed=1, spread=True)
    ids = torch.randint(0, model.c.vocab, (2, length), device=device)
    flag = lambda value: torch.tensor(value, device=device)
    x = model.forward(ids, Tables(2, length, device), flag(False), flag(0.0), torch.float32)[0]
    ours = logits(x, model.top, model.c).view(2, length, -1)
    theirs = transformers_model(model).to(device)(input_ids=ids, use_cache=False).logits.float()
    return ((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).flatten()


if __name__ == "__main__":
    found = differences()
    most = float(found.quantile(0.99))
    print(f"relative difference to transformers: median {float(found.median()):.2e}, 99% {most:.2e}, largest {float(found.max()):.2e}")
    raise SystemExit(most > TOLERANCE)
