//! The DeepSeek-V4 prompt layout.
//!
//! `BOS system-text [tools] turns`, with no newline between pieces. There is no tool role: results become blocks of the
//! next user turn, in the order of the calls that they answer. What is not here: quick tasks and images.

use serde_json::{Map, Value};

use super::Control;
use super::layout::Pieces;
use super::message::{Assistant, Conversation, Effort, Message, Tool, ToolCall, ToolChoice};

const MAX_EFFORT: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n\
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n\
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

const TOOLS_HEAD: &str = r#"## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by "#;

const TOOLS_MIDDLE: &str = "), you MUST output your complete reasoning inside ";

const TOOLS_TAIL: &str = " BEFORE any tool calls or final response.\n\nOtherwise, output directly after ";

const TOOLS_SCHEMAS: &str = " with tool calls or final response.\n\n### Available Tool Schemas\n\n";

const TOOLS_END: &str =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

const BLOCK_OPENER: &str = "\n\n<｜DSML｜tool_calls>\n";

/// Where the model's output begins, which the output parser must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    Reasoning,
    Content,
    /// Mid-sentence: the client's own beginning of the answer goes before.
    Continuation,
    /// Inside a tool block, before the first call.
    Block,
    /// Inside the call of this function.
    Call(String),
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub pieces: Pieces,
    pub opening: Opening,
}

/// Lays a conversation out as a prompt that ends where the model has to speak.
pub fn render(conversation: &Conversation) -> Prompt {
    let mut pieces = Pieces::default();
    pieces.control(Control::Bos);
    if conversation.thinking && conversation.effort == Effort::Max {
        pieces.text(MAX_EFFORT);
    }
    system(conversation, &mut pieces);
    let turns = turns(&conversation.messages);
    for turn in &turns {
        turn.render(conversation.thinking, declares_tools(conversation), &mut pieces);
    }
    let opening = open_answer(conversation, turns.last(), &mut pieces);
    Prompt { pieces, opening }
}

/// A user turn and the assistant turns that answer it.
#[derive(Debug, Default)]
struct Turn<'a> {
    blocks: Vec<String>,
    answer: Option<&'a Assistant>,
}

impl Turn<'_> {
    /// Without tools the model saw old turns stripped of their reasoning; with tools, nothing is dropped.
    fn render(&self, thinking: bool, tools: bool, pieces: &mut Pieces) {
        if !self.blocks.is_empty() {
            pieces.control(Control::User).text(&self.blocks.join("\n\n"));
        }
        let Some(answer) = self.answer else { return };
        pieces.control(Control::Assistant);
        if thinking && (tools || answer.prefix) {
            pieces.control(Control::ThinkStart).text(&answer.reasoning);
        }
        pieces.control(Control::ThinkEnd).text(&answer.content);
        calls(&answer.calls, pieces);
        if !answer.prefix {
            pieces.control(Control::Eos);
        }
    }
}

/// Groups messages into turns: neighbouring user and tool messages merge, results in the order of their calls.
fn turns(messages: &[Message]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    let mut results: Vec<(usize, String)> = Vec::new();
    let mut order: Vec<&str> = Vec::new();
    for message in messages {
        if !matches!(message, Message::Tool { .. }) {
            settle(&mut turns, &mut results);
        }
        match message {
            Message::System(_) => {}
            Message::User(text) => open_turn(&mut turns).blocks.push(text.clone()),
            Message::Tool { call_id, content } => {
                let place = order.iter().position(|id| id == call_id).unwrap_or(order.len());
                results.push((place, format!("<tool_result>{content}</tool_result>")));
            }
            Message::Assistant(assistant) => {
                order = assistant.calls.iter().map(|call| call.id.as_str()).collect();
                open_turn(&mut turns).answer = Some(assistant);
            }
        }
    }
    settle(&mut turns, &mut results);
    turns
}

fn settle(turns: &mut Vec<Turn<'_>>, results: &mut Vec<(usize, String)>) {
    if !results.is_empty() {
        results.sort_by_key(|(place, _)| *place);
        open_turn(turns).blocks.extend(results.drain(..).map(|(_, block)| block));
    }
}

/// The turn that still waits for its answer.
fn open_turn<'t, 'a>(turns: &'t mut Vec<Turn<'a>>) -> &'t mut Turn<'a> {
    if turns.last().is_none_or(|turn| turn.answer.is_some()) {
        turns.push(Turn::default());
    }
    let last = turns.len() - 1;
    &mut turns[last]
}

fn declares_tools(conversation: &Conversation) -> bool {
    !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None
}

fn system(conversation: &Conversation, pieces: &mut Pieces) {
    let texts: Vec<&str> = conversation
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::System(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    pieces.text(&texts.join("\n\n"));
    if declares_tools(conversation) {
        tools_block(&conversation.tools, pieces);
    }
}

fn tools_block(tools: &[Tool], pieces: &mut Pieces) {
    pieces.text("\n\n").markup(TOOLS_HEAD).control(Control::ThinkStart).text(TOOLS_MIDDLE);
    pieces.control(Control::ThinkStart).text("...").control(Control::ThinkEnd).text(TOOLS_TAIL);
    pieces.control(Control::ThinkEnd).text(TOOLS_SCHEMAS);
    let schemas: Vec<String> = tools.iter().map(tool_schema).collect();
    pieces.text(&schemas.join("\n")).text(TOOLS_END);
}

fn tool_schema(tool: &Tool) -> String {
    let mut object = Map::new();
    object.insert("name".into(), tool.name.as_str().into());
    object.insert("description".into(), tool.description.as_str().into());
    object.insert("parameters".into(), Value::Object(tool.parameters.clone()));
    spaced_json(&Value::Object(object))
}

/// Tool calls of an assistant turn, as the model itself would have written them.
fn calls(calls: &[ToolCall], pieces: &mut Pieces) {
    if calls.is_empty() {
        return;
    }
    pieces.markup(BLOCK_OPENER);
    for (i, call) in calls.iter().enumerate() {
        pieces.text(if i > 0 { "\n" } else { "" });
        invoke_opener(&call.name, pieces);
        let arguments = arguments(&call.arguments);
        // The model was trained on parameters joined by newlines between two newlines, so that none leave a blank line.
        pieces.text(if arguments.is_empty() { "\n" } else { "" });
        for (key, value) in arguments {
            let string = value.is_string();
            pieces.markup("<｜DSML｜parameter name=\"").text(&key);
            pieces.text(if string { "\" string=\"true\">" } else { "\" string=\"false\">" });
            pieces.text(&value.as_str().map_or_else(|| spaced_json(&value), str::to_owned));
            pieces.markup("</｜DSML｜parameter>\n");
        }
        pieces.markup("</｜DSML｜invoke>");
    }
    pieces.markup("\n</｜DSML｜tool_calls>");
}

fn invoke_opener(name: &str, pieces: &mut Pieces) {
    pieces.markup("<｜DSML｜invoke name=\"").text(name).text("\">\n");
}

/// Arguments that are not a JSON object become one parameter, as the official encoder does it.
fn arguments(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_else(|_| {
        let mut object = Map::new();
        object.insert("arguments".into(), text.into());
        object
    })
}

fn open_answer(conversation: &Conversation, last: Option<&Turn<'_>>, pieces: &mut Pieces) -> Opening {
    if last.and_then(|turn| turn.answer).is_some_and(|answer| answer.prefix) {
        return Opening::Continuation;
    }
    pieces.control(Control::Assistant);
    let forced = match &conversation.tool_choice {
        ToolChoice::Required => Some(None),
        ToolChoice::Named(name) => Some(Some(name)),
        ToolChoice::None | ToolChoice::Auto => None,
    };
    match forced {
        // A forced call leaves no room for reasoning, so thinking is opened and closed at once.
        Some(name) => {
            if conversation.thinking {
                pieces.control(Control::ThinkStart);
            }
            pieces.control(Control::ThinkEnd).markup(BLOCK_OPENER);
            name.map_or(Opening::Block, |name| {
                invoke_opener(name, pieces);
                Opening::Call(name.clone())
            })
        }
        None if conversation.thinking => {
            pieces.control(Control::ThinkStart);
            Opening::Reasoning
        }
        None => {
            pieces.control(Control::ThinkEnd);
            Opening::Content
        }
    }
}

/// JSON as Python's `json.dumps(ensure_ascii=False)` writes it, which the model was trained on.
fn spaced_json(value: &Value) -> String {
    struct Spaced;
    impl serde_json::ser::Formatter for Spaced {
        fn begin_array_value<W: std::io::Write + ?Sized>(
            &mut self,
            w: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { w.write_all(b", ") }
        }
        fn begin_object_key<W: std::io::Write + ?Sized>(
            &mut self,
            w: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { w.write_all(b", ") }
        }
        fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
            w.write_all(b": ")
        }
    }
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    match serde::Serialize::serialize(value, &mut serializer) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => value.to_string(),
    }
}
