//! Declared tools: random names and parameters, and their block in the system prompt.

use fastrand::Rng;

use super::conversation::{Class, Conversation, Word};
use super::lexicon::{Ids, Lexicon};
use super::wording as say;
use super::world::{pick, spelled, word_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Opens the boxes of a walk: takes a box and its code.
    Open,
    /// Ends a walk: takes an answer.
    Finish,
    /// Chosen by name or by the keyword of its description.
    Job(u16),
}

#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: u16,
    pub integer: bool,
}

#[derive(Clone, Debug)]
pub struct Tool {
    pub name: Word,
    pub purpose: Purpose,
    pub params: Vec<Parameter>,
    /// A job is described with fewer words.
    pub brief: bool,
    /// Where the prompt spells its name.
    pub declared: usize,
}

/// How often a tool's name is a word that the vocabulary lacks.
pub const SPELLED: f32 = 0.1;

/// `count` tools, a share `spelled` of them with a spelled name; with `walk`, one of them opens boxes and one ends the walk.
pub fn draw(lexicon: &Lexicon, rng: &mut Rng, count: usize, walk: bool, spelled: f32) -> Vec<Tool> {
    let mut keywords = lexicon.pools.keywords.clone();
    rng.shuffle(&mut keywords);
    let mut purposes: Vec<Purpose> = keywords.into_iter().map(Purpose::Job).collect();
    if walk {
        purposes.splice(0..0, [Purpose::Open, Purpose::Finish]);
    }
    purposes.truncate(count);
    rng.shuffle(&mut purposes);
    let mut tools: Vec<Tool> = Vec::with_capacity(count);
    for purpose in purposes {
        let mut tool = draw_one(lexicon, rng, purpose, spelled);
        while tools.iter().any(|other| other.name == tool.name) {
            tool = draw_one(lexicon, rng, purpose, spelled);
        }
        tools.push(tool);
    }
    tools
}

fn draw_one(lexicon: &Lexicon, rng: &mut Rng, purpose: Purpose, spelled: f32) -> Tool {
    let mut names = lexicon.pools.params.clone();
    rng.shuffle(&mut names);
    let count = match purpose {
        Purpose::Open => 2,
        Purpose::Finish => 1,
        Purpose::Job(_) => rng.usize(1..=3),
    };
    let job = matches!(purpose, Purpose::Job(_));
    let params =
        names.iter().take(count).map(|&name| Parameter { name, integer: job && rng.f32() < 0.15 }).collect();
    let name = if rng.f32() < spelled { spelled_name(lexicon, rng) } else { tool_name(lexicon, rng) };
    let brief = rng.f32() < 0.3;
    Tool { name, purpose, params, brief, declared: 0 }
}

fn tool_name(lexicon: &Lexicon, rng: &mut Rng) -> Word {
    let pools = &lexicon.pools;
    let (verb, object) = (rng.usize(0..pools.verbs.len()), rng.usize(0..pools.objects.len()));
    let whole = |verb: u16| vec![verb, pools.objects[object]];
    Word { plain: whole(pools.verbs[verb]), spaced: whole(pools.spaced_verbs[verb]) }
}

fn spelled_name(lexicon: &Lexicon, rng: &mut Rng) -> Word {
    let pools = &lexicon.pools;
    let object = rng.usize(0..pools.objects.len());
    let count = rng.usize(5..9);
    let first = word_of(lexicon, spelled(rng, &pools.letters, count));
    let whole = |first: Ids| first.into_iter().chain([pools.objects[object]]).collect();
    Word { plain: whole(first.plain), spaced: whole(first.spaced) }
}

/// Writes the official tools block; the system turn must be open.
pub fn declare(conv: &mut Conversation<'_>, tools: &mut [Tool]) {
    let frame = &conv.lexicon.frame;
    conv.push(&frame.tools_head, Class::Other);
    for (i, tool) in tools.iter_mut().enumerate() {
        if i > 0 {
            conv.push(&[conv.lexicon.newline], Class::Other);
        }
        let start = conv.len();
        schema(conv, tool);
        conv.schemas.push(start..conv.len());
    }
    conv.push(&frame.tools_tail, Class::Other);
}

fn schema(conv: &mut Conversation<'_>, tool: &mut Tool) {
    conv.fill(say::SCHEMA_NAME, &[]);
    tool.declared = conv.len();
    conv.push(&tool.name.plain, Class::Other);
    conv.fill(say::SCHEMA_DESCRIPTION, &[]);
    match tool.purpose {
        Purpose::Open => conv.fill(say::OPENS, &[]),
        Purpose::Finish => conv.fill(say::ENDS, &[]),
        Purpose::Job(keyword) if tool.brief => conv.fill(say::JOB, &[&[keyword], &tool.name.plain]),
        Purpose::Job(keyword) => conv.fill(say::FOR_JOB, &[&[keyword], &tool.name.spaced]),
    }
    conv.fill(say::SCHEMA_PROPERTIES, &[]);
    for (i, param) in tool.params.iter().enumerate() {
        conv.push(&[param.name], Class::Other);
        conv.fill(
            match (i + 1 == tool.params.len(), param.integer) {
                (false, false) => say::SCHEMA_STRING,
                (false, true) => say::SCHEMA_INTEGER,
                (true, false) => say::SCHEMA_LAST_STRING,
                (true, true) => say::SCHEMA_LAST_INTEGER,
            },
            &[],
        );
    }
    for (i, param) in tool.params.iter().enumerate() {
        if i > 0 {
            conv.fill(say::SCHEMA_COMMA, &[]);
        }
        conv.push(&[param.name], Class::Other);
    }
    conv.fill(say::SCHEMA_END, &[]);
}

/// A tool for a job, if one is declared.
pub fn pick_job(rng: &mut Rng, tools: &[Tool]) -> Option<Tool> {
    let jobs: Vec<&Tool> = tools.iter().filter(|tool| matches!(tool.purpose, Purpose::Job(_))).collect();
    pick(rng, &jobs).cloned()
}

pub fn find(tools: &[Tool], purpose: Purpose) -> Option<&Tool> {
    tools.iter().find(|tool| tool.purpose == purpose)
}

/// A keyword that no declared tool serves.
pub fn unserved_keyword(lexicon: &Lexicon, rng: &mut Rng, tools: &[Tool]) -> Option<u16> {
    let served = |keyword: u16| tools.iter().any(|tool| tool.purpose == Purpose::Job(keyword));
    let free: Ids = lexicon.pools.keywords.iter().copied().filter(|&keyword| !served(keyword)).collect();
    pick(rng, &free)
}
