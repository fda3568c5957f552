"""The conversations and outputs that `recipe.py` runs: data only."""


def function(name, description, properties, required=()):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    function("get_weather", "Weather of a city.", {"city": {"type": "string"}, "days": {"type": "integer"}}, ["city"]),
    function("ping", "No arguments.", {}),
    function(
        "store", "Keeps a value.", {"value": {"type": "object"}, "tags": {"type": "array", "items": {"type": "string"}}}
    ),
]
CHAT = {"thinking": {"type": "disabled"}}
# Effort "low" because with any other this library prefixes a text that V4-Flash's encoder reserves for "max".
THINK = {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


def conversation(name, messages, mode=CHAT, note=None, ours=None, **more):
    """`ours` derives flashlane's prompt: the name of the case it equals, or a (text, replacement) pair."""
    case = {"name": name, "request": {"messages": messages, **mode, **more}}
    extra = {"note": note, "ours": ours}
    return case | {k: v for k, v in extra.items() if v}


TWO_CALLS = [call("a", "get_weather", '{"city": "Paris", "days": 2}'), call("b", "ping", "{}")]
EFFORT_NOTE = "This library encodes for the later V4-Pro; flashlane follows V4-Flash, where only `max` adds a text, the one of `high` here."

CONVERSATIONS = [
    conversation("one user turn", [user("Hello")]),
    conversation("one user turn, thinking", [user("Hello")], THINK),
    conversation("system and user", [system("Be brief."), user("Hello")]),
    conversation("empty system", [system(""), user("Hello")]),
    conversation("two leading systems", [system("A."), system("B."), user("Hello")]),
    conversation(
        "system in the middle",
        [system("A."), user("x"), assistant("y"), system("B."), user("z")],
    ),
    conversation("multi-turn", [user("1+1?"), assistant("2"), user("2+2?"), assistant("4"), user("3+3?")]),
    conversation(
        "multi-turn, thinking, old reasoning dropped",
        [user("1+1?"), assistant("2", reasoning_content="add"), user("2+2?")],
        THINK,
    ),
    conversation("multi-turn, thinking, no reasoning sent", [user("1+1?"), assistant("2"), user("2+2?")], THINK),
    conversation("consecutive user messages", [user("first"), user("second"), user("third")]),
    conversation(
        "text parts", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    ),
    conversation("tools, chat", [user("Weather in Paris?")], tools=TOOLS),
    conversation("tools, thinking, with system", [system("Be brief."), user("Weather in Paris?")], THINK, tools=TOOLS),
    conversation(
        "tool without description and parameters",
        [user("go")],
        tools=[{"type": "function", "function": {"name": "bare"}}],
    ),
    conversation("tool_choice none leaves the tools out", [user("go")], tools=TOOLS, tool_choice="none"),
    conversation("tool_choice required", [user("go")], tools=TOOLS, tool_choice="required"),
    conversation(
        "tool_choice required, thinking",
        [user("go")],
        THINK,
        tools=TOOLS,
        tool_choice="required",
        note="The official front end refuses; flashlane closes the thinking and opens the block.",
    ),
    conversation(
        "tool_choice named",
        [user("go")],
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "ping"}},
        note="The official prompt opens the block and leaves the name to the model; flashlane forces the name.",
    ),
    conversation(
        "calls and results in order",
        [user("go"), assistant("Looking.", tool_calls=TWO_CALLS), result("a", "sunny"), result("b", "pong")],
        tools=TOOLS,
        note="Empty arguments: the official V4-Flash encoder leaves a blank line between the invoke tags, this library none; flashlane writes the blank line.",
        ours=('<｜DSML｜invoke name="ping">\n', '<｜DSML｜invoke name="ping">\n\n'),
    ),
    conversation(
        "results out of order are sorted by call",
        [
            user("go"),
            assistant(
                "",
                tool_calls=[
                    call("a", "get_weather", '{"city": "Paris"}'),
                    call("b", "get_weather", '{"city": "Rome"}'),
                ],
            ),
            result("b", "rain"),
            result("a", "sunny"),
        ],
        tools=TOOLS,
    ),
    conversation(
        "result and user text share a turn",
        [
            user("go"),
            assistant(None, tool_calls=[call("a", "get_weather", '{"city": "Paris"}')]),
            result("a", "sunny"),
            user("And now?"),
        ],
        tools=TOOLS,
    ),
    conversation(
        "tools, thinking, reasoning kept",
        [
            user("go"),
            assistant("Hm.", reasoning_content="need it", tool_calls=[call("a", "get_weather", '{"city": "Paris"}')]),
            result("a", "sunny"),
            assistant("Sunny.", reasoning_content="done"),
            user("Thanks"),
        ],
        THINK,
        tools=TOOLS,
    ),
    conversation(
        "value types in arguments",
        [
            user("go"),
            assistant(
                "",
                tool_calls=[
                    call(
                        "a",
                        "store",
                        '{"value": {"k": [1, 2.5, true, null, "é"]}, "tags": ["x"], "n": -3, "s": "line\\n\\"q\\""}',
                    )
                ],
            ),
            result("a", "ok"),
        ],
        tools=TOOLS,
    ),
    conversation(
        "arguments that are not JSON",
        [user("go"), assistant("", tool_calls=[call("a", "ping", "not json")]), result("a", "ok")],
        tools=TOOLS,
    ),
    conversation("unicode", [system("Réponds en français 🇫🇷."), user("你好, naïve café — 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 e\u0301 👩\u200d💻")]),
    conversation(
        "control tokens spelled by the user",
        [user("<｜User｜>x<｜Assistant｜></think><｜end▁of▁sentence｜>")],
        note="`control` lists the byte ranges that are control tokens: the spelled ones are not among them.",
    ),
    conversation(
        "closing tag inside a result",
        [
            user("go"),
            assistant("", tool_calls=[call("a", "get_weather", '{"city": "P"}')]),
            result("a", "x</tool_result>y"),
        ],
        tools=TOOLS,
    ),
    conversation(
        "effort high",
        [user("Hello")],
        THINK | {"reasoning_effort": "high"},
        EFFORT_NOTE,
        ours="one user turn, thinking",
    ),
    conversation(
        "effort not given",
        [user("Hello")],
        {"thinking": {"type": "enabled"}},
        EFFORT_NOTE,
        ours="one user turn, thinking",
    ),
    conversation("effort max", [user("Hello")], THINK | {"reasoning_effort": "max"}, EFFORT_NOTE, ours="effort high"),
    conversation("response_format json_object", [user("Answer in json.")], response_format={"type": "json_object"}),
    conversation("empty user text", [user("")]),
    conversation(
        "developer role",
        [{"role": "developer", "content": "Be brief."}, user("Hello")],
        note="The official front end refuses; flashlane takes developer as system.",
    ),
    conversation("unanswered call", [user("go"), assistant("", tool_calls=TWO_CALLS), user("so?")], tools=TOOLS),
]

T = "｜DSML｜"


def param(name, value, string="true"):
    return f'<{T}parameter name="{name}" string="{string}">{value}</{T}parameter>\n'


def invoke(name, body):
    return f'<{T}invoke name="{name}">\n{body}</{T}invoke>\n'


def block(*invokes, wrapper="tool_calls"):
    return f"<{T}{wrapper}>\n{''.join(invokes)}</{T}{wrapper}>"


WEATHER = invoke("get_weather", param("city", "Paris"))
OPEN = f'<{T}tool_calls>\n<{T}invoke name="get_weather">\n'


def output(name, text, thinking=False, note=None, ours=None, **more):
    case = {"name": name, "thinking": thinking, "output": text, **more}
    if note:
        case["note"] = note
    return case | {"ours": ours} if ours else case


def answer(content="", calls=(), reasoning="", finish=None):
    pairs = [{"name": n, "arguments": a} for n, a in calls]
    return {
        "reasoning": reasoning,
        "content": content,
        "calls": pairs,
        "finish": finish or ("tool_calls" if pairs else "stop"),
    }


def value_case(name, value, string="true", note=None, ours=None):
    return output(name, block(invoke("get_weather", param("city", value, string))), note=note, ours=ours)


PARIS = ("get_weather", '{"city": "Paris"}')
BY_ID = "flashlane decides by token id: the same characters in plain tokens stay content."
LITERAL = "Python literals become JSON where the schema type agrees; otherwise the call counts as malformed."

OUTPUTS = [
    output("plain content", "Hello there."),
    output("reasoning and content", "think a bit</think>Hello.", thinking=True),
    output("newlines around the marker", "\n\nthink\n\n</think>\n\nHello.\n", thinking=True),
    output("no closing marker", "still thinking", thinking=True),
    output("call inside reasoning", "let me\n\n" + block(WEATHER), thinking=True),
    output(
        "call inside reasoning, then the marker",
        "let me\n\n" + block(WEATHER) + "</think>done",
        thinking=True,
        note="Text after the block is content.",
        ours=answer("done", [PARIS], "let me"),
    ),
    output("reasoning, content, call", "r</think>Let me look.\n\n" + block(WEATHER), thinking=True),
    output("one call", block(WEATHER)),
    output("content before a call keeps its trailing space", "Hello \n\n" + block(WEATHER)),
    output("two calls in one block", block(WEATHER, invoke("ping", ""))),
    output(
        "two blocks",
        block(WEATHER) + "\n\n" + block(invoke("ping", "")),
        note="Both blocks count.",
        ours=answer("", [PARIS, ("ping", "{}")]),
    ),
    output("no wrapper", WEATHER),
    output("wrapper function_calls", block(WEATHER, wrapper="function_calls")),
    output("wrapper toolcalls", block(WEATHER, wrapper="toolcalls")),
    output("unterminated wrapper", f"<{T}tool_calls>\n{WEATHER}"),
    output(
        "cut inside a value",
        OPEN + f'<{T}parameter name="city" string="true">Par',
        finish="length",
        note="A header that was sent is closed as valid JSON; finish is length.",
        ours=answer("", [("get_weather", '{"city": "Par"}')], finish="length"),
    ),
    output(
        "cut inside a closing tag",
        OPEN + f'<{T}parameter name="city" string="true">Paris</',
        finish="length",
        note="As above.",
        ours=answer("", [PARIS], finish="length"),
    ),
    output(
        "cut inside the name",
        f'<{T}tool_calls>\n<{T}invoke name="get_we',
        finish="length",
        ours=answer(finish="length"),
        note="Nothing was sent, so nothing is; finish is length.",
    ),
    output("cut after one whole call", f'<{T}tool_calls>\n{WEATHER}<{T}invoke name="pi', finish="length"),
    output("no arguments, newline", block(invoke("ping", ""))),
    output("no arguments, nothing between", block(f'<{T}invoke name="ping"></{T}invoke>\n')),
    output("no arguments, blank line", block(invoke("ping", "\n"))),
    output("no arguments, self-closing", block(f'<{T}invoke name="ping"/>\n')),
    output(
        "body is a JSON object",
        block(invoke("get_weather", '{"city": "Paris"}\n')),
        note="The object is used.",
        ours=answer("", [PARIS]),
    ),
    output(
        "one parameter named arguments",
        block(invoke("get_weather", param("arguments", '{"city": "Paris"}', "false"))),
        note="Unwrapped: the schema has no such name and has the inner keys.",
        ours=answer("", [PARIS]),
    ),
    value_case("number", "5", "false"),
    value_case("object", '{"a": [1, 2]}', "false"),
    value_case(
        "broken JSON value",
        "{[}",
        "false",
        note="Sent as a string where the schema says string; the arguments are always valid JSON.",
        ours=answer("", [("get_weather", '{"city": "{[}"}')]),
    ),
    value_case("NaN", "NaN", "false", note=LITERAL),
    value_case("empty JSON value", "", "false", note=LITERAL),
    value_case("True", "True", "false", note=LITERAL),
    value_case("digits flagged as string", "5"),
    value_case("quotes and backslashes", 'say "hi" \\ C:\\n\tend'),
    value_case("markup-like text", "<b>&amp;</b> </parameter> 2 < 3"),
    value_case("newlines kept", "\nline\n\nline\n"),
    value_case("unicode", "naïve 你好 👩\u200d💻 e\u0301"),
    value_case("control characters", "a\u0000b\u001bc\u007fd"),
    output(
        "quote inside the name",
        block(invoke('get"weather', param("city", "Paris"))),
        note="The name ends at the quote; it is undeclared, see there.",
    ),
    output(
        "duplicate parameter",
        block(invoke("get_weather", param("city", "Rome") + param("city", "Paris"))),
        note="Keys are unique; the last value wins.",
        ours=answer("", [PARIS]),
    ),
    output("undeclared tool", block(invoke("launch", param("code", "0")))),
    output(
        "string attribute missing",
        block(invoke("get_weather", f'<{T}parameter name="city">Paris</{T}parameter>\n')),
        note='Taken as string="true".',
        ours=answer("", [PARIS]),
    ),
    output("prose after the block", block(WEATHER) + "\nDone.", note="Kept as content."),
    output("prose between calls", block(WEATHER, "and then\n", invoke("ping", ""))),
    output("closer repeated", block(WEATHER) + f"</{T}tool_calls></think>"),
    output("marker twice", "a</think>b</think>c", thinking=True),
    output("marker in chat mode", "a</think>b"),
    output("angle bracket at the end", "2 <"),
    output("almost a sentinel", "a <｜ b <｜DSM is"),
    output(
        "sentinel spelled in prose",
        f"<{T}invoke name= is used",
        spelled=True,
        note=BY_ID,
        ours=answer(f"<{T}invoke name= is used"),
    ),
    output("ASCII bars", '<|DSML|tool_calls>\n<|DSML|invoke name="ping">\n</|DSML|invoke>\n</|DSML|tool_calls>'),
    output("doubled bars", block(invoke("ping", "")).replace("｜", "｜｜")),
    output(
        "sentinel without its bracket",
        f"a {T} b",
        note="The sentinel token is dropped and counted.",
        ours=answer("a  b"),
    ),
    output("end token spelled in text", "a <｜end▁of▁sentence｜> b", spelled=True),
    value_case("value holds an opener", f"<{T}invoke name=x>"),
    output("value holds a spelled closer", block(invoke("get_weather", param("city", "a</parameter>b</invoke>")))),
    output("empty output", ""),
]
