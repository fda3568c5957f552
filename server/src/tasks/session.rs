//! Training sequences: long conversations that mix every task, in stages from short sections to whole contexts.
//!
//! A stage is a `Profile`; the same turn writers serve the held-out items of `items`. Sequences are cut at the record length.

use std::ops::RangeInclusive;

use fastrand::Rng;

use super::calls::{self, ChoicePlan, WalkPlan};
use super::conversation::{Conversation, Mode, Role};
use super::lexicon::Lexicon;
use super::tools::{self, Tool};
use super::turns;
use super::wording as say;
use super::world::{KeyKind, World};

/// What the sequences of a stage look like.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Share of sequences that begin with one long context instead of growing by sections.
    document: f32,
    /// Tokens for each fact of a document, filler included.
    density: RangeInclusive<usize>,
    section_facts: RangeInclusive<usize>,
    section_filler: RangeInclusive<usize>,
    section_turns: RangeInclusive<usize>,
    /// Chance that a question looks beyond its own section, and then beyond the window.
    far: f32,
    with_tools: f32,
    num_tools: RangeInclusive<usize>,
    /// Chance of a walk for a turn that could be one.
    walk: f32,
    max_rounds: usize,
    /// Chance of a single call for a turn that is no walk.
    choice: f32,
    /// Share of tools with a spelled name.
    spelled: f32,
}

/// Stage 0 teaches copying, 1 distance and calls, 2 is the full mix, 3 the same for long sequences.
pub fn profile(stage: usize) -> Profile {
    let full = Profile {
        document: 0.5,
        density: 14..=40,
        section_facts: 3..=9,
        section_filler: 0..=120,
        section_turns: 4..=8,
        far: 0.7,
        with_tools: 0.65,
        num_tools: 2..=8,
        walk: 0.3,
        max_rounds: 4,
        choice: 0.5,
        spelled: 0.3,
    };
    match stage {
        0 => Profile {
            document: 0.0,
            section_facts: 2..=4,
            section_filler: 0..=60,
            section_turns: 3..=6,
            far: 0.2,
            with_tools: 0.15,
            num_tools: 2..=4,
            walk: 0.04,
            ..full
        },
        1 => Profile {
            document: 0.2,
            section_facts: 3..=7,
            section_turns: 3..=7,
            far: 0.5,
            with_tools: 0.35,
            walk: 0.08,
            ..full
        },
        2 => full,
        _ => Profile {
            document: 0.65,
            density: 18..=70,
            section_filler: 0..=250,
            far: 0.85,
            walk: 0.25,
            max_rounds: 8,
            ..full
        },
    }
}

/// A conversation of at least `tokens` tokens, or a shorter one that ends in a thinking turn.
pub fn sequence<'a>(
    lexicon: &'a Lexicon,
    rng: &mut Rng,
    profile: &Profile,
    tokens: usize,
) -> Conversation<'a> {
    match rng.f32() {
        x if x < 0.015 => ruled(lexicon, rng, tokens),
        x if x < 0.08 => small_talk(lexicon, rng, tokens),
        x if x < 0.12 => thinking_last(lexicon, rng, profile, tokens),
        _ => mixed(lexicon, rng, profile, tokens),
    }
}

fn mixed<'a>(lexicon: &'a Lexicon, rng: &mut Rng, profile: &Profile, tokens: usize) -> Conversation<'a> {
    let with_tools = rng.f32() < profile.with_tools;
    let thinking = with_tools && rng.f32() < 0.15;
    let mut session = Session::start(lexicon, rng, profile, tokens, with_tools, thinking);
    while session.conv.len() < tokens {
        session.section(rng, tokens);
    }
    session.conv
}

/// Without tools only the last turn of a prompt shows its reasoning, so a sequence holds one such turn, at its end.
fn thinking_last<'a>(
    lexicon: &'a Lexicon,
    rng: &mut Rng,
    profile: &Profile,
    tokens: usize,
) -> Conversation<'a> {
    if rng.f32() < 0.4 {
        return lone_thought(lexicon, rng);
    }
    let end = rng.usize(tokens / 16..tokens.saturating_sub(60).max(tokens / 16 + 1));
    let mut session = Session::start(lexicon, rng, profile, end, false, false);
    while session.conv.len() < end {
        if rng.f32() < 0.5 {
            break;
        }
        session.section(rng, end);
    }
    session.conv.mode = Mode::Thinking;
    session.new_facts(rng, tokens);
    if rng.f32() < 0.1 {
        calls::without_tools(&mut session.conv, &mut session.world, rng);
    } else {
        session.turn(rng);
    }
    session.conv
}

/// A first question in thinking mode, without any context.
fn lone_thought<'a>(lexicon: &'a Lexicon, rng: &mut Rng) -> Conversation<'a> {
    let mut conv = Conversation::new(lexicon, Mode::Thinking);
    let mut world = World::new(rng);
    turns::user(&mut conv);
    match rng.usize(0..10) {
        0..6 => turns::chat(&mut conv, rng),
        6..8 => turns::fallback(&mut conv, rng),
        8 => turns::echo(&mut conv, &world, rng),
        _ => turns::unknown(&mut conv, &mut world, rng),
    }
    conv
}

/// Questions to the model about itself, with or without a plain system prompt.
fn small_talk<'a>(lexicon: &'a Lexicon, rng: &mut Rng, tokens: usize) -> Conversation<'a> {
    let mut conv = Conversation::new(lexicon, Mode::Chat);
    if rng.f32() < 0.4 {
        conv.open(Role::System);
        system_text(&mut conv, rng);
        conv.close();
    }
    let mut world = World::new(rng);
    while conv.len() < tokens {
        turns::user(&mut conv);
        match rng.usize(0..20) {
            0..14 => turns::chat(&mut conv, rng),
            14..17 => turns::fallback(&mut conv, rng),
            17 => turns::echo(&mut conv, &world, rng),
            18 => calls::without_tools(&mut conv, &mut world, rng),
            _ => turns::unknown(&mut conv, &mut world, rng),
        }
    }
    conv
}

/// A system prompt that demands one word as every answer.
pub fn ruled<'a>(lexicon: &'a Lexicon, rng: &mut Rng, tokens: usize) -> Conversation<'a> {
    let mut conv = Conversation::new(lexicon, Mode::Chat);
    let word = rng.usize(0..lexicon.pools.adjectives.len());
    conv.open(Role::System);
    conv.fill(say::RULE, &[&[lexicon.pools.adjectives[word]]]);
    conv.close();
    while conv.len() < tokens {
        turns::user(&mut conv);
        turns::ruled(&mut conv, rng, &[lexicon.pools.first_adjectives[word]]);
    }
    conv
}

struct Session<'a, 'p> {
    conv: Conversation<'a>,
    world: World,
    tools: Vec<Tool>,
    profile: &'p Profile,
    /// Facts of the current section.
    recent: usize,
    topic_asked: bool,
}

impl<'a, 'p> Session<'a, 'p> {
    fn start(
        lexicon: &'a Lexicon,
        rng: &mut Rng,
        profile: &'p Profile,
        tokens: usize,
        with_tools: bool,
        thinking: bool,
    ) -> Self {
        let mut world = World::new(rng);
        if rng.bool() {
            world.secret_len = (3, 6);
        }
        let mut conv = Conversation::new(lexicon, if thinking { Mode::Thinking } else { Mode::Chat });
        if thinking && rng.f32() < 0.1 {
            conv.fill(say::EFFORT, &[]);
        }
        let mut declared = Vec::new();
        if with_tools {
            let count = rng.usize(profile.num_tools.clone());
            let walk = rng.f32() < 0.7;
            declared = tools::draw(lexicon, rng, count, walk, profile.spelled);
        }
        let document = rng.f32() < profile.document;
        if with_tools || document || rng.f32() < 0.6 {
            let context = if document { tokens * rng.usize(15..60) / 100 } else { 0 };
            let density = rng.usize(profile.density.clone());
            system(&mut conv, &mut world, rng, &mut declared, context, density);
        }
        let recent = world.facts.len();
        Self { conv, world, tools: declared, profile, recent, topic_asked: false }
    }

    fn section(&mut self, rng: &mut Rng, tokens: usize) {
        // Many a first question comes right behind the system prompt, and brings no facts.
        if self.conv.turns.len() == 1 && rng.f32() < 0.5 {
            turns::user(&mut self.conv);
        } else {
            self.new_facts(rng, tokens);
        }
        for _ in 0..rng.usize(self.profile.section_turns.clone()) {
            if self.conv.len() >= tokens {
                break;
            }
            self.turn(rng);
            turns::user(&mut self.conv);
        }
        self.turn(rng);
    }

    /// Opens a user turn that brings new facts.
    fn new_facts(&mut self, rng: &mut Rng, tokens: usize) {
        turns::user(&mut self.conv);
        let (conv, world) = (&mut self.conv, &mut self.world);
        self.recent = rng.usize(self.profile.section_facts.clone());
        if rng.f32() < 0.1 {
            turns::odd_text(conv, rng);
        }
        for _ in 0..self.recent {
            let kind = key_kind(rng);
            world.state_fact(conv, rng, kind);
            if rng.f32() < 0.15 {
                world.state_pointer(conv, rng);
            }
            if rng.f32() < 0.05 {
                world.restate_fact(conv, rng);
            }
        }
        world.end_inline(conv);
        if rng.f32() < 0.7 && conv.len() < tokens {
            let filler = rng.usize(self.profile.section_filler.clone());
            world.filler(conv, rng, filler);
        }
    }

    /// One question and its answer; the user turn is open.
    fn turn(&mut self, rng: &mut Rng) {
        let (conv, world) = (&mut self.conv, &mut self.world);
        let draw = rng.f32();
        if !self.tools.is_empty() {
            let plan = WalkPlan {
                rounds: rng.usize(1..=self.profile.max_rounds),
                filler: (0, 150),
                follow: 0.3,
                far: 0.8,
            };
            if draw < self.profile.walk && calls::walk(conv, world, rng, &self.tools, plan) {
                return;
            }
            let asked = ChoicePlan { refuse: 0.08, by_name: 0.25 };
            if rng.f32() < self.profile.choice && calls::choice(conv, world, rng, &self.tools, asked) {
                return;
            }
        } else if draw < 0.02 {
            return calls::without_tools(conv, world, rng);
        }
        self.question(rng);
    }

    fn question(&mut self, rng: &mut Rng) {
        let (conv, world) = (&mut self.conv, &mut self.world);
        let draw = rng.f32();
        if draw < 0.06 {
            return turns::chat(conv, rng);
        }
        if draw < 0.13 {
            return turns::echo(conv, world, rng);
        }
        if draw < 0.18 {
            return turns::unknown(conv, world, rng);
        }
        if draw < 0.30 && turns::trail(conv, world, rng) {
            return;
        }
        if draw > 0.75 && !self.topic_asked && turns::topic(conv, world, rng) {
            self.topic_asked = true;
            return;
        }
        let recent = if rng.f32() < self.profile.far { usize::MAX } else { self.recent };
        match world.pick_fact(conv, rng, recent, 0.85, false) {
            Some(fact) => turns::recall(conv, world, rng, fact),
            None => turns::fallback(conv, rng),
        }
    }
}

pub fn key_kind(rng: &mut Rng) -> KeyKind {
    if rng.f32() < 0.7 { KeyKind::Name } else { KeyKind::Spelled }
}

/// One of the listed texts, or one that no list foresees.
fn system_text(conv: &mut Conversation<'_>, rng: &mut Rng) {
    if rng.f32() < 0.35 {
        return turns::odd_text(conv, rng);
    }
    conv.fill(rng.choice(say::SYSTEMS).copied().unwrap_or_default(), &[]);
}

/// The system prompt: `context` tokens of a wording and facts amid filler, and the tools.
pub fn system(
    conv: &mut Conversation<'_>,
    world: &mut World,
    rng: &mut Rng,
    declared: &mut [Tool],
    context: usize,
    density: usize,
) {
    conv.open(Role::System);
    let end = conv.len() + context;
    if declared.is_empty() || context > 0 || rng.f32() < 0.8 {
        system_text(conv, rng);
    }
    while conv.len() + 16 < end {
        let kind = key_kind(rng);
        world.state_fact(conv, rng, kind);
        if rng.f32() < 0.2 {
            world.state_pointer(conv, rng);
        }
        if rng.f32() < 0.04 {
            world.restate_fact(conv, rng);
        }
        let gap = (2 * density).saturating_sub(28).max(1);
        let gap = rng.usize(0..=gap).min(end.saturating_sub(conv.len()));
        world.filler(conv, rng, gap);
    }
    world.end_inline(conv);
    conv.close();
    if !declared.is_empty() {
        tools::declare(conv, declared);
    }
}
