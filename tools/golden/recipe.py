"""Records what DeepSeek's own `deepseek-recipe` does with conversations and with hostile outputs.

Usage: python tools/golden/recipe.py [--out DIR]

Writes `server/tests/golden/prompts.json` (Chat Completions request -> V4 prompt, with the
byte ranges `control` that are control tokens) and `outputs.json`
(generated text -> reasoning, content, calls, finish). A `note` says where flashlane differs on purpose;
`ours` then holds flashlane's answer if one is fixed. The cases live in `recipe_cases.py`.
"""

import argparse
import json
import pathlib

import deepseek_recipe as recipe

import recipe_cases

MODEL = "flashlane"
FINISH = {"stop": recipe.InferenceFinishReason.Stop, "length": recipe.InferenceFinishReason.Length}


def options():
    return recipe.ConversionOptions().with_model_alias(MODEL, recipe.ModelVersion.DeepseekV4Pro)


def render(request):
    """The prompt and the byte ranges that hold control tokens, or the refusal."""
    try:
        converted = recipe.ChatCompletionRequest(request).convert(options())
        rendered = recipe.DeepseekV4Encoding().render_conversation(converted.conversation)
    except recipe.ConversionError as error:
        return {"error": json.loads(error.body)["error"]["message"]}
    except ValueError as error:
        return {"error": str(error)}
    at = [0]
    for char in rendered.prompt:
        at.append(at[-1] + len(char.encode()))
    return {"prompt": rendered.prompt, "control": [[at[a], at[b]] for a, b in rendered.special_ranges]}


def prompt_cases():
    """Every conversation rendered; `ours` becomes flashlane's prompt where that differs."""
    cases = [{**c, **render({"model": MODEL, **c["request"]})} for c in recipe_cases.CONVERSATIONS]
    prompts = {c["name"]: c.get("prompt") for c in cases}
    for case in cases:
        match case.pop("ours", None):
            case str(name):
                case["ours"] = prompts[name]
            case (old, new):
                if case["prompt"].count(old) != 1:
                    raise RuntimeError(f"{case['name']}: expected one {old!r} in the prompt")
                case["ours"] = case["prompt"].replace(old, new)
    return cases


def parse(pieces, thinking, finish):
    """The accumulated answer to a generation that arrives in these pieces."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "q"}],
        "tools": recipe_cases.TOOLS,
        "stream": True,
        "thinking": {"type": "enabled" if thinking else "disabled"},
    }
    request = recipe.ChatCompletionRequest(body).convert(options())
    parsing = request.parsing_options
    processor = recipe.StreamProcessor(recipe.ChatCompletionRequest.chunk_generator(request, "id", MODEL), parsing)
    chunks = processor.push(recipe.InferenceChunk.ready())
    for piece in pieces:
        chunks += processor.push(recipe.InferenceChunk.text(piece, 1))
    chunks += processor.push(recipe.InferenceChunk.finish(FINISH[finish])) if not processor.finished else []
    chunks += processor.finish() if not processor.finished else []
    response = recipe.ChatCompletionResponse("id", MODEL, 0, 1, 0)
    for chunk in chunks:
        response.accumulate(chunk)
    choice = json.loads(response.to_json())["choices"][0]
    message = choice["message"]
    calls = [
        {"name": c["function"]["name"], "arguments": c["function"]["arguments"]}
        for c in message.get("tool_calls") or []
    ]
    return {
        "reasoning": message.get("reasoning_content") or "",
        "content": message.get("content") or "",
        "calls": calls,
        "finish": choice["finish_reason"],
    }


def output_case(case):
    """Parses whole and character by character; the answer must not depend on the cut."""
    text, finish = case["output"], case.get("finish", "stop")
    whole = parse([text], case["thinking"], finish)
    if parse(list(text), case["thinking"], finish) != whole:
        raise RuntimeError(f"{case['name']}: the official parser's answer depends on how the text is cut")
    return {**case, "finish": finish, "official": whole}


def write(path, cases, **head):
    """`{head..., "cases": [...]}` with one case a line."""
    lines = [f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items()]
    body = ",\n  ".join(json.dumps(c, ensure_ascii=False) for c in cases)
    path.write_text("{\n" + "".join(lines) + ' "cases": [\n  ' + body + "\n ]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "server" / "tests" / "golden")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write(out / "prompts.json", prompt_cases())
    write(out / "outputs.json", [output_case(case) for case in recipe_cases.OUTPUTS], tools=recipe_cases.TOOLS)


if __name__ == "__main__":
    main()
