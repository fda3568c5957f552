"""`litellm` against a flashlane server: python litellm_client.py BASE_URL [MODEL]."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

import vault
from openai_client import HELLO, NAME, check


def main():
    url, model = sys.argv[1], (sys.argv[2:] or ["flashlane-tiny"])[0]
    common = {"model": f"openai/{model}", "api_base": url, "api_key": "none", "num_retries": 0}
    check(litellm.completion(messages=HELLO, **common).choices[0].message.content, NAME)
    chunks = list(litellm.completion(messages=HELLO, stream=True, **common))
    check("".join(c.choices[0].delta.content or "" for c in chunks), NAME)
    chunks = list(litellm.completion(messages=vault.START, tools=vault.TOOLS, stream=True, **common))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    name, arguments, _ = vault.ROUNDS[0]
    check([(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls], [(name, arguments)])
    try:
        litellm.completion(messages=[{"role": "user", "content": "word " * 100_000}], **common)
    except litellm.ContextWindowExceededError:
        pass
    else:
        raise AssertionError("an endless prompt was answered")
    print("litellm: ok")


if __name__ == "__main__":
    main()
