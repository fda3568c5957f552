"""Writes Tiny-A through `transformers`' own `save_pretrained`, to test that its files load.

Usage: python tools/golden/save_pretrained.py DIR [--seed N] [--native] [--names FILE]

By default transformers maps its names back to the checkpoint's, imperfectly (README.md lists where);
`--native` keeps its module names. `--names` also lists what was written, one `name dtype [shape]` a line.
The values are those of the generator with the given seed.
"""

import argparse
import pathlib
import tempfile

from safetensors import safe_open
from transformers import DeepseekV4ForCausalLM

import generate
import oracle


def listing(path):
    """`name dtype [shape]` of every tensor in a directory's safetensors files, sorted by name."""
    lines = []
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                view = tensors.get_slice(name)
                lines.append(f"{name} {view.get_dtype()} {view.get_shape()}")
    return sorted(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=generate.SEED)
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--names", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as source:
        oracle.write_checkpoint(source, args.seed)
        model = DeepseekV4ForCausalLM.from_pretrained(source)
    model.save_pretrained(args.dir, save_original_format=not args.native)
    if args.names:
        args.names.write_text("\n".join(listing(args.dir)) + "\n")


if __name__ == "__main__":
    main()
