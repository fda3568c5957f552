"""Schemathesis hooks: bodies generated from OpenAI's API description ask for the served model and a short answer."""

import os

import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        if "model" in body:
            body["model"] = os.environ.get("MODEL", "flashlane-tiny")
        for name in ["max_tokens", "max_completion_tokens"]:
            if type(body.get(name)) is int:
                body[name] = min(body[name], 8)
        if "messages" in body and not {"max_tokens", "max_completion_tokens"} & body.keys():
            body["max_tokens"] = 8
    return body
