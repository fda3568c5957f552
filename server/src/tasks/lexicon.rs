//! The words of the tasks as token ids.
//!
//! Everything the generator writes is a concatenation of pieces that were encoded once, here, with the shipped tokenizer; the
//! pieces end where its splitting pattern cuts, so that encoding the whole text gives the same ids. It knows no task.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, ensure};
use tokenizers::Tokenizer;

const TOKENIZER: &[u8] = include_bytes!("../../../models/tiny/tokenizer.json");
const WORDS: &str = include_str!("words.txt");
const CHAT: &str = include_str!("chat.txt");

/// Token ids; the vocabulary is far below 2^15.
pub type Ids = Vec<u16>;

pub const BOS: u16 = 0;
pub const EOS: u16 = 1;
pub const PAD: u16 = 2;
pub const USER: u16 = 3;
pub const ASSISTANT: u16 = 4;
pub const THINK: u16 = 5;
pub const END_THINK: u16 = 6;

const TOOLS_HEAD: &str = "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
\"<｜DSML｜tool_calls>\" block like the following:\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"$TOOL_NAME\">\n\
<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n...\n</｜DSML｜invoke>\n\
<｜DSML｜invoke name=\"$TOOL_NAME2\">\n...\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>\n\nString parameters should be specified as is and set \
`string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n\
If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool \
calls or final response.\n\nOtherwise, output directly after </think> with tool calls or final response.\n\n### Available Tool Schemas\n\n";
const TOOLS_TAIL: &str =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

/// A question with its wordings, and its answer.
#[derive(Debug)]
pub struct Intent {
    pub answer: Ids,
    pub wordings: Vec<Ids>,
}

/// Fixed pieces of the chat frame.
#[derive(Debug)]
pub struct Frame {
    pub tools_head: Ids,
    pub tools_tail: Ids,
    pub call_open: Ids,
    pub invoke_open: Ids,
    pub name_close: Ids,
    pub param_open: Ids,
    pub string_value: Ids,
    pub json_value: Ids,
    pub param_close: Ids,
    pub call_close: Ids,
    pub result_open: Ids,
    pub result_close: Ids,
}

/// Words with a leading space unless the name says otherwise.
#[derive(Debug)]
pub struct Pools {
    pub adjectives: Ids,
    pub first_adjectives: Ids,
    pub nouns: Ids,
    pub filler: Ids,
    pub topics: Vec<Ids>,
    pub topic_names: Vec<Ids>,
    /// At the start of a tool name; `objects` are its `_word` half.
    pub verbs: Ids,
    pub spaced_verbs: Ids,
    pub objects: Ids,
    pub params: Ids,
    pub keywords: Ids,
    /// `0-9A-Z`, what secrets are made of.
    pub secret: Ids,
    /// `a-z`, for words that the vocabulary lacks.
    pub letters: Ids,
}

#[derive(Debug)]
pub struct Lexicon {
    tokenizer: Tokenizer,
    templates: HashMap<&'static str, Vec<Ids>>,
    pub frame: Frame,
    pub pools: Pools,
    pub chat: Vec<Intent>,
    /// Questions nobody can foresee, and the one answer to them.
    pub fallback: Intent,
    pub space: u16,
    pub newline: u16,
    pub stop: u16,
    pub question_mark: u16,
}

impl Lexicon {
    pub fn load() -> Result<Self> {
        let tokenizer =
            Tokenizer::from_bytes(TOKENIZER).map_err(|e| anyhow!("tokenizer.json of the tasks: {e}"))?;
        let encode = |text: &str| encode(&tokenizer, text);
        let (chat, fallback) = chat(&tokenizer)?;
        let one = |text: &str| -> Result<u16> { encode(text)?.first().copied().context("empty piece") };
        Ok(Self {
            frame: frame(&tokenizer)?,
            pools: pools(&tokenizer)?,
            chat,
            fallback,
            space: one(" ")?,
            newline: one("\n")?,
            stop: one(".")?,
            question_mark: one("?")?,
            templates: super::wording::all()
                .map(|t| Ok((t, template(&tokenizer, t)?)))
                .collect::<Result<_>>()?,
            tokenizer,
        })
    }

    /// The pieces of `template` between its `{}` slots. Only wordings listed in `wording` are known.
    pub fn template(&self, template: &str) -> &[Ids] {
        let pieces = self.templates.get(template);
        debug_assert!(pieces.is_some(), "{template:?} is not in wording::all");
        pieces.map_or(&[], Vec::as_slice)
    }

    pub fn encode(&self, text: &str) -> Result<Ids> {
        encode(&self.tokenizer, text)
    }

    pub fn decode(&self, ids: &[u16]) -> Result<String> {
        let ids: Vec<u32> = ids.iter().map(|&id| id.into()).collect();
        self.tokenizer.decode(&ids, false).map_err(|e| anyhow!("decoding {} tokens: {e}", ids.len()))
    }
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Ids> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|e| anyhow!("encoding {text:?}: {e}"))?;
    encoding
        .get_ids()
        .iter()
        .map(|&id| u16::try_from(id).with_context(|| format!("id {id} of {text:?}")))
        .collect()
}

fn template(tokenizer: &Tokenizer, text: &str) -> Result<Vec<Ids>> {
    text.split("{}").map(|piece| encode(tokenizer, piece)).collect()
}

fn frame(tokenizer: &Tokenizer) -> Result<Frame> {
    let e = |text| encode(tokenizer, text);
    Ok(Frame {
        tools_head: e(TOOLS_HEAD)?,
        tools_tail: e(TOOLS_TAIL)?,
        call_open: e("\n\n<｜DSML｜tool_calls>\n")?,
        invoke_open: e("<｜DSML｜invoke name=\"")?,
        name_close: e("\">\n")?,
        param_open: e("<｜DSML｜parameter name=\"")?,
        string_value: e("\" string=\"true\">")?,
        json_value: e("\" string=\"false\">")?,
        param_close: e("</｜DSML｜parameter>\n")?,
        call_close: e("</｜DSML｜invoke>\n</｜DSML｜tool_calls>")?,
        result_open: e("<tool_result>")?,
        result_close: e("</tool_result>")?,
    })
}

fn pools(tokenizer: &Tokenizer) -> Result<Pools> {
    let pool = |name: &str, prefix: &str| -> Result<Ids> {
        pool_words(name).map(|word| single(tokenizer, &format!("{prefix}{word}"))).collect()
    };
    let chars =
        |range: &str| range.chars().map(|c| single(tokenizer, &c.to_string())).collect::<Result<Ids>>();
    const TOPICS: [&str; 4] = ["sea", "farm", "city", "sky"];
    Ok(Pools {
        adjectives: pool("adjectives", " ")?,
        first_adjectives: pool("adjectives", "")?,
        nouns: pool("nouns", " ")?,
        filler: pool("filler", " ")?,
        topics: TOPICS.iter().map(|t| pool(t, " ")).collect::<Result<_>>()?,
        topic_names: TOPICS.iter().map(|t| encode(tokenizer, &format!("the {t}"))).collect::<Result<_>>()?,
        verbs: pool("verbs", "")?,
        spaced_verbs: pool("verbs", " ")?,
        objects: pool("objects", "_")?,
        params: pool("params", "")?,
        keywords: pool("keywords", " ")?,
        secret: chars("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")?,
        letters: chars("abcdefghijklmnopqrstuvwxyz")?,
    })
}

fn single(tokenizer: &Tokenizer, text: &str) -> Result<u16> {
    let ids = encode(tokenizer, text)?;
    ensure!(ids.len() == 1, "the vocabulary spells {text:?} with {} tokens, expected 1", ids.len());
    Ok(ids[0])
}

fn pool_words(name: &str) -> impl Iterator<Item = &'static str> {
    let head = format!("[{name}]");
    let lines = WORDS.lines().skip_while(move |line| *line != head).skip(1);
    lines.take_while(|line| !line.starts_with('[')).flat_map(str::split_whitespace)
}

fn chat(tokenizer: &Tokenizer) -> Result<(Vec<Intent>, Intent)> {
    let mut intents = Vec::new();
    for line in CHAT.lines().filter(|line| !line.starts_with('#')) {
        let (mark, text) = line.split_at_checked(2).with_context(|| format!("chat.txt: line {line:?}"))?;
        if mark == "- " {
            let intent: &mut Intent =
                intents.last_mut().context("chat.txt: wording before the first answer")?;
            intent
                .wordings
                .extend(forms(text).iter().map(|form| encode(tokenizer, form)).collect::<Result<Vec<_>>>()?);
        } else {
            intents.push(Intent { answer: encode(tokenizer, text)?, wordings: Vec::new() });
        }
    }
    let fallback = intents.pop().context("chat.txt: no fallback answer")?;
    Ok((intents, fallback))
}

/// A wording as written, in lower case, and each without its final mark.
fn forms(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let mut forms: Vec<String> = [text, &lower]
        .iter()
        .flat_map(|form| [(*form).to_owned(), form.trim_end_matches(['?', '!', '.']).to_owned()])
        .collect();
    forms.sort_unstable();
    forms.dedup();
    forms
}
