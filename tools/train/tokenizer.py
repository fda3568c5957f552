"""Writes `models/tiny/tokenizer.json`, the vocabulary of the built-in model.

Byte level, whole words, no merges: a piece that the splitting pattern cuts out is one token if the vocabulary has it and is
spelled byte by byte otherwise, so every text round-trips. Digits and capitals are always cut out one by one: secrets cost one
token a character. The fixed phrases of the chat frame and of the official tools text are single pieces. The words come from
the files that the task generator draws from. Does not train anything; the same input gives the same bytes.

    python tools/train/tokenizer.py
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "server" / "src" / "tasks"
OUTPUT = ROOT / "models" / "tiny" / "tokenizer.json"

# Ids 0.. in this order; only the first three carry `special: true`, as in the official tokenizer.
CONTROL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"]
NUM_SPECIAL = 3
VOCAB_SIZE = 1088
# Where a pool's words stand: after a space (the default), at the start of a value, or as the second half of a tool's name.
PREFIXES = {"adjectives": ["", " "], "verbs": ["", " "], "params": [""], "objects": ["_"], "extra": [""]}

# Pieces of the frame. Each may only end where the server's own prompts can end or where a value begins.
PHRASES = [
    # Reasoning effort prefix, one piece.
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and comprehensively "
    "decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and "
    "adversarial scenarios.\nExplicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n",
    # The official tools text, cut at its control tokens and placeholders.
    "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<",
    "tool_calls>\" block like the following:\n\n<",
    "$TOOL_NAME2", "$TOOL_NAME", "$PARAMETER_NAME", "\" string=\"true|false\">$PARAMETER_VALUE</", "...\n",
    "tool_calls>\n\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by ",
    "), you MUST output your complete reasoning inside ", " BEFORE any tool calls or final response.\n\nOtherwise, output directly after ",
    " with tool calls or final response.\n\n### Available Tool Schemas\n\n",
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n",
    # Tool schemas in Python-style JSON.
    "{\"name\": \"", "\", \"description\": \"", "\", \"parameters\": {\"type\": \"object\", \"properties\": {\"", "\": {\"type\": \"string\"}, \"",
    "\": {\"type\": \"integer\"}, \"", "\": {\"type\": \"string\"}}, \"required\": [\"", "\": {\"type\": \"integer\"}}, \"required\": [\"", "\", \"", "\"]}}",
    # Calls and results.
    "\n\n<", "tool_calls>\n", "tool_calls>", "invoke name=\"", "invoke>\n", "parameter name=\"", "parameter>\n", "\" string=\"true\">",
    "\" string=\"false\">", "\">\n", "</", "<tool_result>", "</tool_result>", "\": \"",
]
# Words keep their leading space; `_word` is the second half of a tool's name.
GENERIC = r" ?[A-Z]?[a-z]+|_[a-z]+|[A-Z]|[0-9]|[^\sA-Za-z0-9]|\s"


def literal(text: str) -> str:
    """Escapes for the regex engines of both tokenizer builds, which agree on this subset."""
    return "".join("\\" + c if c in r"\.^$|?*+()[]{}" else {"\n": "\\n"}.get(c, c) for c in text)


def pattern() -> str:
    longest_first = sorted(PHRASES, key=lambda p: (-len(p), p))
    return "|".join([literal(p) for p in longest_first] + [GENERIC])


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for every byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(hidden)}


ALPHABET = byte_alphabet()


def spell(text: str) -> str:
    return "".join(ALPHABET[b] for b in text.encode())


def read_pools() -> dict[str, list[str]]:
    pools: dict[str, list[str]] = {}
    for line in (TASKS / "words.txt").read_text().splitlines():
        if line.startswith("["):
            current = pools.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            current += line.split()
    return pools


def chat_pieces() -> list[str]:
    """Pieces of the chat file and of the generator's fixed wordings that occur at least twice, the most frequent first."""
    count: dict[str, int] = {}
    for name, weight in (("chat.txt", 1), ("phrases.txt", 2)):
        for line in (TASKS / name).read_text().splitlines():
            text = line[2:] if name == "chat.txt" else line
            if line.startswith("#"):
                continue
            for form in {text, text.lower()}:
                for piece in re.findall(pattern(), form):
                    count[piece] = count.get(piece, 0) + weight
    frequent = [p for p, n in count.items() if n >= 2 and len(p) > 1]
    return sorted(frequent, key=lambda p: (-count[p], p))


def vocabulary() -> dict[str, int]:
    pools = read_pools()
    pieces = list(PHRASES)
    for pool, words in pools.items():
        pieces += [prefix + w for prefix in PREFIXES.get(pool, [" "]) for w in words]
    vocab = {token: i for i, token in enumerate(CONTROL)}
    for token in [*ALPHABET.values(), *map(spell, pieces + chat_pieces())]:
        if len(vocab) < VOCAB_SIZE:
            vocab.setdefault(token, len(vocab))
    return vocab


def added_token(token_id: int, content: str) -> dict:
    special = token_id < NUM_SPECIAL
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}


def tokenizer_json() -> dict:
    split = {"type": "Split", "pattern": {"Regex": pattern()}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocabulary(), "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added_token(i, s) for i, s in enumerate(CONTROL)], "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, "model": model}


def main() -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(tokenizer_json(), ensure_ascii=False, indent=0) + "\n")
    print(f"{len(vocabulary())} tokens")


if __name__ == "__main__":
    main()
