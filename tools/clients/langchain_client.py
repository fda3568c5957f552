"""`langchain-openai` against a flashlane server: python langchain_client.py BASE_URL [MODEL]."""

import sys

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

import vault
from openai_client import NAME, check


def main():
    url, model = sys.argv[1], (sys.argv[2:] or ["flashlane-tiny"])[0]
    chat = ChatOpenAI(base_url=url, model=model, api_key="none", max_retries=0, max_tokens=200)
    check(chat.invoke("What is your name?").content, NAME)
    check("".join(chunk.content for chunk in chat.stream("What is your name?")), NAME)
    bound = chat.bind_tools(vault.TOOLS)
    for invoke in [bound.invoke, lambda messages: sum_of(bound.stream(messages))]:
        messages = [SystemMessage(vault.SYSTEM), HumanMessage(vault.START[1]["content"])]
        for name, arguments, result in vault.ROUNDS:
            message = invoke(messages)
            check([(c["name"], c["args"]) for c in message.tool_calls], [(name, arguments)])
            messages += [message, ToolMessage(result, tool_call_id=message.tool_calls[0]["id"])]
        check(invoke(messages).content, vault.FINAL)
    print("langchain-openai: ok")


def sum_of(chunks):
    first, *rest = chunks
    return sum(rest, first)


if __name__ == "__main__":
    main()
