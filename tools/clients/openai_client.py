"""The official `openai` package against a flashlane server: python openai_client.py BASE_URL [MODEL]."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import openai

import vault

HELLO = [{"role": "user", "content": "What is your name?"}]
NAME = "My name is flashlane-tiny."


def check(actual, expected):
    if actual != expected:
        raise AssertionError(f"expected {expected!r}, found {actual!r}")


def models(client, model):
    check([m.id for m in client.models.list()], [model])
    check(client.models.retrieve(model).id, model)


def whole_answer(client, model):
    answer = client.chat.completions.create(model=model, messages=HELLO)
    check(answer.object, "chat.completion")
    choice = answer.choices[0]
    check((choice.message.role, choice.message.content, choice.message.tool_calls), ("assistant", NAME, None))
    check((choice.finish_reason, choice.message.refusal), ("stop", None))
    check(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


def streamed_answer(client, model):
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=model, messages=HELLO, stream=True, stream_options=options))
    check(chunks[0].choices[0].delta.role, "assistant")
    check(len({(c.id, c.created, c.model, c.object) for c in chunks}), 1)
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    check((text, chunks[-2].choices[0].finish_reason), (NAME, "stop"))
    check((chunks[-1].choices, chunks[-1].usage.completion_tokens > 1), ([], True))
    check([c.usage for c in chunks[:-1]], [None] * (len(chunks) - 1))
    check([c for c in client.chat.completions.create(model=model, messages=HELLO, stream=True) if not c.choices], [])


def stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=vault.START, tools=vault.TOOLS) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    check("tool_calls.function.arguments.done" in kinds, True)
    name, arguments, _ = vault.ROUNDS[0]
    check([(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls], [(name, arguments)])


def walk(client, model, **more):
    """Tool call, tool message, and so on to the final answer."""
    messages = list(vault.START)
    for name, arguments, result in vault.ROUNDS:
        choice = client.chat.completions.create(model=model, messages=messages, tools=vault.TOOLS, **more).choices[0]
        check(choice.finish_reason, "tool_calls")
        (call,) = choice.message.tool_calls
        check((call.function.name, json.loads(call.function.arguments)), (name, arguments))
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    choice = client.chat.completions.create(model=model, messages=messages, tools=vault.TOOLS, **more).choices[0]
    check((choice.message.content, choice.finish_reason), (vault.FINAL, "stop"))


def walk_with_reasoning(client, model):
    walk(client, model, reasoning_effort="high")
    answer = client.chat.completions.create(model=model, messages=HELLO, reasoning_effort="high")
    message = answer.choices[0].message
    check((message.content, bool(message.reasoning_content)), (NAME, True))
    check(answer.usage.completion_tokens_details.reasoning_tokens > 0, True)


def several_clients(client, model):
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(walk, client, model) for _ in range(4)]:
            done.result()


def tool_choices(client, model):
    ask = lambda choice: client.chat.completions.create(
        model=model, messages=vault.START, tools=vault.TOOLS, tool_choice=choice, max_tokens=200
    )
    check(ask("none").choices[0].message.tool_calls, None)
    check(ask("required").choices[0].message.tool_calls[0].function.name, "open_box")
    forced = ask({"type": "function", "function": {"name": "send_note"}}).choices[0].message
    check([c.function.name for c in forced.tool_calls], ["send_note"])
    check(type(json.loads(forced.tool_calls[0].function.arguments)), dict)


def sampling(client, model):
    ask = lambda **more: client.chat.completions.create(model=model, messages=HELLO, **more).choices
    check([c.message.content for c in ask(temperature=1, seed=5, n=2)], [c.message.content for c in ask(temperature=1, seed=5, n=2)])
    check(ask(max_tokens=2)[0].finish_reason, "length")
    check(ask(stop=["flash"])[0].message.content, "My name is ")
    entries = ask(logprobs=True, top_logprobs=2)[0].logprobs.content
    check(bytes(b for e in entries for b in e.bytes).decode(), NAME)
    check({len(e.top_logprobs) for e in entries}, {2})


def completions(client, model):
    prompt = "<｜User｜>What is your name?<｜Assistant｜></think>"
    check(client.completions.create(model=model, prompt=prompt, max_tokens=64).choices[0].text, NAME)
    stream = client.completions.create(model=model, prompt=prompt, max_tokens=64, stream=True)
    check("".join(c.choices[0].text for c in stream), NAME)


def errors(client, model):
    ask = client.chat.completions.create
    for kind, status, param, code, request in [
        (openai.NotFoundError, 404, "model", "model_not_found", {"model": "other", "messages": HELLO}),
        (openai.BadRequestError, 400, "temperature", None, {"model": model, "messages": HELLO, "temperature": 9}),
        (openai.BadRequestError, 400, "messages", None, {"model": model, "messages": []}),
        (
            openai.BadRequestError, 400, "messages", "context_length_exceeded",
            {"model": model, "messages": [{"role": "user", "content": "word " * 100_000}]},
        ),
    ]:
        try:
            ask(**request)
        except kind as error:
            found = (error.status_code, error.param, error.body["message"] in str(error))
            check(found, (status, param, True))
            check(code in (None, error.code), True)
        else:
            raise AssertionError(f"{request!r:.80} was answered, expected {kind.__name__}")
    raw = client.chat.completions.with_raw_response.create(model=model, messages=HELLO)
    check((raw.status_code, raw.headers["content-type"], raw.parse().choices[0].message.content), (200, "application/json", NAME))


def main():
    url, model = sys.argv[1], (sys.argv[2:] or ["flashlane-tiny"])[0]
    client = openai.OpenAI(base_url=url, api_key="none", timeout=120, max_retries=0)
    for test in [
        models, whole_answer, streamed_answer, stream_helper, walk, walk_with_reasoning, several_clients,
        tool_choices, sampling, completions, errors,
    ]:
        test(client, model)
        print(f"openai {openai.__version__}: {test.__name__} ok", flush=True)


if __name__ == "__main__":
    main()
