"""The conversation that every client plays: a vault whose codes stand in the system prompt.

It is a task of the built-in model (`flashlane tasks --kind walk`), so the answers are known to the letter.
"""

SYSTEM = (
    "You keep the codes of a vault. Use only the codes in this text.\n"
    "box silver owl: 7K2QX9\n"
    "box red fox: M4T8ZB\n"
    "box quiet harp: 0V5RLD\n"
)


def _tool(name, description, *params):
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in params}, "required": list(params)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("open_box", "Opens a box with its code.", "box", "code"),
    _tool("send_note", "For repair jobs.", "text"),
    _tool("close_door", "Ends the walk.", "answer"),
]
START = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "open box silver owl"}]
# What the model calls, and what its tools answer.
ROUNDS = [
    ("open_box", {"box": "silver owl", "code": "7K2QX9"}, "ok, next box red fox"),
    ("open_box", {"box": "red fox", "code": "M4T8ZB"}, "ok, done"),
    ("close_door", {"answer": "M4T8"}, "ok"),
]
FINAL = "ok"
