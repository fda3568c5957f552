//! Held-out items: one task each, with an oracle answer for every assistant turn.

use fastrand::Rng;

use super::calls::{self, WalkPlan};
use super::conversation::{Class, Conversation, Mode};
use super::lexicon::Lexicon;
use super::session::{ruled, system};
use super::tools::{self, Tool};
use super::turns;
use super::world::{KeyKind, World, pick};

/// Tokens that a needle's question and last fact may take.
const NEEDLE_ROOM: usize = 70;

/// What an item asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Open boxes with codes from the context, over several rounds.
    Walk,
    /// The value of a key; the prompt has exactly the given length.
    Needle,
    /// The code of a box.
    Recall,
    /// Where a box leads, and that box's code.
    Trail,
    /// A key that the context lacks.
    Unknown,
    /// A call of one of the declared tools, by name or keyword.
    Choice,
    /// A request for a tool under `tool_choice: none`.
    None,
    /// A question about the model.
    Chat,
    /// Repeat a text.
    Echo,
    /// What the filler is about: needs the whole context.
    Topic,
    /// A system prompt that demands one word.
    Rule,
}

/// How items are made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub kind: Kind,
    pub ctx: usize,
    pub rounds: usize,
    pub thinking: bool,
}

/// One item: the conversation, and the tools that the request names.
#[derive(Debug)]
pub struct Item<'a> {
    pub conv: Conversation<'a>,
    /// Tools of the request that `tool_choice: none` keeps out of the prompt.
    pub withheld: Option<Conversation<'a>>,
}

/// Item `index` of `seed`: the same for every count.
pub fn item<'a>(lexicon: &'a Lexicon, shape: Shape, seed: u64, index: u64) -> Item<'a> {
    let mut rng = Rng::with_seed(
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index + 1).wrapping_mul(0xD1B5_4A32_D192_ED03),
    );
    let rng = &mut rng;
    if shape.kind == Kind::Rule {
        return Item { conv: ruled(lexicon, rng, 16), withheld: None };
    }
    let mut world = World::new(rng);
    let mode = if shape.thinking { Mode::Thinking } else { Mode::Chat };
    let mut conv = Conversation::new(lexicon, mode);
    let mut declared = declared_tools(lexicon, rng, shape.kind);
    if !matches!(shape.kind, Kind::Chat | Kind::None) {
        let density = rng.usize(18..40);
        let needle = shape.kind == Kind::Needle;
        world.near_ties = if needle { 0.4 } else { world.near_ties };
        let context = shape.ctx.saturating_sub(if needle { NEEDLE_ROOM } else { 0 });
        system(&mut conv, &mut world, rng, &mut declared, context, density);
    }
    question(&mut conv, &mut world, rng, shape, &declared);
    let withheld = (shape.kind == Kind::None).then(|| withheld_tools(lexicon, rng));
    Item { conv, withheld }
}

fn declared_tools(lexicon: &Lexicon, rng: &mut Rng, kind: Kind) -> Vec<Tool> {
    match kind {
        Kind::Walk | Kind::Choice => {
            let count = rng.usize(4..=8);
            let walk = kind == Kind::Walk || rng.bool();
            tools::draw(lexicon, rng, count, walk, tools::SPELLED)
        }
        _ => Vec::new(),
    }
}

fn withheld_tools<'a>(lexicon: &'a Lexicon, rng: &mut Rng) -> Conversation<'a> {
    let mut conv = Conversation::new(lexicon, Mode::Chat);
    let mut declared = tools::draw(lexicon, rng, 4, true, tools::SPELLED);
    tools::declare(&mut conv, &mut declared);
    conv
}

fn question(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng, shape: Shape, declared: &[Tool]) {
    if shape.kind == Kind::Needle {
        return needle(conv, world, rng, shape.ctx);
    }
    turns::user(conv);
    match shape.kind {
        Kind::Walk => {
            if world.known_name(rng).is_none() {
                world.state_fact(conv, rng, KeyKind::Name);
            }
            let plan = WalkPlan { rounds: shape.rounds, filler: (60, 150), follow: 0.25, far: 0.9 };
            calls::walk(conv, world, rng, declared, plan);
        }
        Kind::Choice => {
            calls::choice(conv, world, rng, declared, calls::ChoicePlan::ITEMS);
        }
        Kind::Trail => {
            while world.pointers.is_empty() {
                world.state_fact(conv, rng, KeyKind::Name);
                world.state_pointer(conv, rng);
            }
            turns::trail(conv, world, rng);
        }
        Kind::Recall => recall(conv, world, rng),
        Kind::Topic => {
            while world.topic().is_none() {
                world.filler(conv, rng, 60);
            }
            turns::topic(conv, world, rng);
        }
        Kind::Unknown => turns::unknown(conv, world, rng),
        Kind::None => calls::without_tools(conv, world, rng),
        Kind::Echo => turns::echo(conv, world, rng),
        Kind::Chat if rng.f32() < 0.15 => turns::fallback(conv, rng),
        Kind::Chat | Kind::Needle | Kind::Rule => turns::chat(conv, rng),
    }
}

fn recall(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng) {
    let fact = world.known_name(rng).unwrap_or_else(|| world.state_fact(conv, rng, KeyKind::Name));
    turns::recall(conv, world, rng, fact);
}

/// A question whose prompt is exactly `length` tokens long, if the context leaves room.
fn needle(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng, length: usize) {
    world.state_fact(conv, rng, KeyKind::Spelled);
    let known: Vec<usize> = (0..world.facts.len()).filter(|&fact| world.facts[fact].seen.is_some()).collect();
    let Some(fact) = pick(rng, &known) else { return };
    let mut padding_rng = rng.fork();
    let asked = {
        let (mut scratch, mut world) = (conv.clone(), world.clone());
        turns::user(&mut scratch);
        turns::recall(&mut scratch, &mut world, &mut rng.clone(), fact);
        scratch.turns.last().map_or(0, |turn| turn.reasoning.start) - conv.len()
    };
    let missing = length.saturating_sub(conv.len() + asked);
    let padding: Vec<u16> =
        (0..missing).filter_map(|_| pick(&mut padding_rng, &conv.lexicon.pools.filler)).collect();
    conv.push(&padding, Class::Other);
    conv.close();
    turns::user(conv);
    turns::recall(conv, world, rng, fact);
}
