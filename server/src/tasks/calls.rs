//! Tool calls: single requests, and the vault walk over several rounds.

use fastrand::Rng;

use super::conversation::{Class, Conversation, Role, SpanKind, Word};
use super::tools::{self, Purpose, Tool};
use super::turns;
use super::wording as say;
use super::world::{KeyKind, World, spelled, word_of};

/// Characters of the last code that end a walk.
const FINISH_CHARS: usize = 4;

/// How a walk runs.
#[derive(Clone, Copy, Debug)]
pub struct WalkPlan {
    pub rounds: usize,
    /// Fresh filler and facts in each result, in tokens.
    pub filler: (usize, usize),
    /// Chance that a result names a pointer instead of a box.
    pub follow: f32,
    /// Chance that the next box is beyond the window.
    pub far: f32,
}

/// How a single tool is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ChoicePlan {
    /// Chance of a job that no tool serves.
    pub refuse: f32,
    /// Chance that the request gives the tool's name, not its keyword.
    pub by_name: f32,
}

impl ChoicePlan {
    /// Of held-out items.
    pub const ITEMS: Self = Self { refuse: 0.08, by_name: 0.5 };
}

/// A request for one of the declared jobs; the user turn is open. False if no job is declared.
pub fn choice(
    conv: &mut Conversation<'_>,
    world: &mut World,
    rng: &mut Rng,
    declared: &[Tool],
    plan: ChoicePlan,
) -> bool {
    if rng.f32() < plan.refuse {
        return refuse(conv, world, rng, declared);
    }
    let Some(tool) = tools::pick_job(rng, declared) else { return false };
    let Purpose::Job(keyword) = tool.purpose else { return false };
    let arguments = if rng.f32() < plan.by_name {
        conv.fill(say::BY_NAME[rng.usize(0..say::BY_NAME.len())], &[&tool.name.spaced]);
        request_arguments(conv, world, rng, &tool)
    } else {
        by_keyword(conv, rng, keyword, |conv, rng| request_arguments(conv, world, rng, &tool))
    };
    conv.close();
    conv.reply(say::THINK_USE, &[&tool.name.spaced]);
    conv.begin_call(&tool.name.plain, SpanKind::Tool, Some(tool.declared));
    for (param, (value, seen)) in tool.params.iter().zip(&arguments) {
        conv.param(&[param.name], &value.plain, !param.integer, SpanKind::Argument, *seen);
    }
    conv.end_call();
    report(conv, world, rng);
    true
}

/// The keyword ahead of the arguments or behind them.
fn by_keyword<'a, T>(
    conv: &mut Conversation<'a>,
    rng: &mut Rng,
    keyword: u16,
    arguments: impl FnOnce(&mut Conversation<'a>, &mut Rng) -> T,
) -> T {
    let form = rng.usize(0..3);
    if rng.bool() {
        conv.fill(say::BY_KEYWORD[form], &[&[keyword]]);
        return arguments(conv, rng);
    }
    conv.fill(say::BEFORE_ARGUMENTS[form], &[]);
    let written = arguments(conv, rng);
    conv.fill(say::LAST_KEYWORD[rng.usize(0..say::LAST_KEYWORD.len())], &[&[keyword]]);
    written
}

/// Writes the values into the request, and returns them with where they stand.
fn request_arguments(
    conv: &mut Conversation<'_>,
    world: &mut World,
    rng: &mut Rng,
    tool: &Tool,
) -> Vec<(Word, Option<usize>)> {
    let mut arguments = Vec::new();
    for (i, param) in tool.params.iter().enumerate() {
        if i > 0 {
            conv.fill(say::AND, &[]);
        }
        let looked_up = if !param.integer && rng.f32() < 0.25 {
            world.pick_fact(conv, rng, usize::MAX, 0.8, true)
        } else {
            None
        };
        arguments.push(if let Some(fact) = looked_up {
            let fact = &world.facts[fact];
            conv.fill(say::THE_CODE_OF, &[&fact.key.spaced]);
            (fact.value.clone(), fact.seen)
        } else {
            let value = argument(conv, world, rng, param.integer);
            conv.push(&value.spaced, Class::Other);
            let seen = conv.len() - value.plain.len();
            (value, Some(seen))
        });
    }
    arguments
}

fn argument(conv: &Conversation<'_>, world: &World, rng: &mut Rng, integer: bool) -> Word {
    let lexicon = conv.lexicon;
    if integer {
        let mut digits = spelled(rng, &lexicon.pools.secret[1..10], 1);
        let more = rng.usize(0..4);
        digits.extend(spelled(rng, &lexicon.pools.secret[..10], more));
        return word_of(lexicon, digits);
    }
    match rng.usize(0..3) {
        0 => world.secret(lexicon, rng),
        1 => turns::words(conv, rng),
        _ => match rng.choice(&world.facts) {
            Some(fact) => fact.key.clone(),
            None => turns::words(conv, rng),
        },
    }
}

/// A job that no tool serves, or a walk without tools.
fn refuse(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng, declared: &[Tool]) -> bool {
    let Some(keyword) = tools::unserved_keyword(conv.lexicon, rng, declared) else { return false };
    let answer = if declared.is_empty() { say::NO_TOOLS } else { say::NO_SUCH_TOOL };
    let value = argument(conv, world, rng, false);
    by_keyword(conv, rng, keyword, |conv, _| conv.push(&value.spaced, Class::Other));
    turns::reply_about(conv, &[], &conv.lexicon.template(answer)[0], say::THINK_ME, SpanKind::Tool);
    true
}

/// A request for a tool where none is declared.
pub fn without_tools(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng) {
    if rng.bool() || !refuse(conv, world, rng, &[]) {
        let name = world.fresh_key(conv.lexicon, rng, KeyKind::Name);
        conv.fill(say::WALK_STARTS[rng.usize(0..say::WALK_STARTS.len())], &[&name.spaced]);
        turns::reply_about(
            conv,
            &[],
            &conv.lexicon.template(say::NO_TOOLS)[0],
            say::THINK_ME,
            SpanKind::Tool,
        );
    }
}

/// The result of a single call, which the model then reports word for word.
fn report(conv: &mut Conversation<'_>, world: &World, rng: &mut Rng) {
    let result = match rng.usize(0..3) {
        0 => world.secret(conv.lexicon, rng),
        1 => turns::words(conv, rng),
        _ => Word { plain: conv.lexicon.template(say::OK)[0].clone(), spaced: Vec::new() },
    };
    conv.open(Role::Tool);
    let source = conv.len();
    conv.push(&result.plain, Class::Other);
    conv.close();
    conv.reply(say::THINK_REPEAT, &[]);
    conv.answer(&result.plain, SpanKind::Echo, Some(source));
    conv.end_reply();
}

/// A vault walk: each result names the next box, and the last one ends it. False if tools or boxes are missing.
pub fn walk(
    conv: &mut Conversation<'_>,
    world: &mut World,
    rng: &mut Rng,
    declared: &[Tool],
    plan: WalkPlan,
) -> bool {
    let (Some(opener), Some(finish)) =
        (tools::find(declared, Purpose::Open), tools::find(declared, Purpose::Finish))
    else {
        return false;
    };
    let Some(mut fact) = world.pick_fact(conv, rng, usize::MAX, plan.far, true) else { return false };
    conv.fill(say::WALK_STARTS[rng.usize(0..say::WALK_STARTS.len())], &[&world.facts[fact].key.spaced]);
    let mut named = conv.len() - 1;
    conv.close();
    for round in 0..plan.rounds {
        open_box(conv, world, opener, fact, named);
        conv.open(Role::Tool);
        if round + 1 == plan.rounds {
            conv.fill(say::WALK_DONE, &[]);
            conv.close();
            break;
        }
        news(conv, world, rng, plan);
        (fact, named) = next_box(conv, world, rng, plan, fact);
        conv.close();
    }
    end_walk(conv, world, finish, fact);
    true
}

fn open_box(conv: &mut Conversation<'_>, world: &mut World, opener: &Tool, fact: usize, named: usize) {
    let fact = &mut world.facts[fact];
    conv.reply(say::THINK_OPEN, &[&fact.key.spaced]);
    conv.begin_call(&opener.name.plain, SpanKind::Tool, Some(opener.declared));
    conv.param(&[opener.params[0].name], &fact.key.plain, true, SpanKind::CallName, Some(named));
    let seen = fact.seen;
    conv.param(&[opener.params[1].name], &fact.value.plain, true, SpanKind::CallCode, seen);
    fact.seen = conv.spans.last().map(|span| span.range.start);
    conv.end_call();
}

/// Names the next box, or a pointer to it; returns the box and where its name was read.
fn next_box(
    conv: &mut Conversation<'_>,
    world: &World,
    rng: &mut Rng,
    plan: WalkPlan,
    now: usize,
) -> (usize, usize) {
    if rng.f32() < plan.follow
        && let Some(pointer) = rng.choice(&world.pointers)
    {
        conv.fill(say::FOLLOW, &[&pointer.key.spaced]);
        return (pointer.target, pointer.seen);
    }
    let next = world.pick_fact(conv, rng, usize::MAX, plan.far, true).unwrap_or(now);
    conv.fill(say::NEXT, &[&world.facts[next].key.spaced]);
    (next, conv.len() - 2)
}

/// Fresh filler and facts, ahead of the next box's name: that name must be near when the call is written.
fn news(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng, plan: WalkPlan) {
    let budget = rng.usize(plan.filler.0..=plan.filler.1);
    if budget < 12 {
        return;
    }
    let end = conv.len() + budget;
    for _ in 0..rng.usize(0..=(budget / 30).min(3)) {
        world.state_fact(conv, rng, KeyKind::Name);
        if rng.f32() < 0.25 {
            world.state_pointer(conv, rng);
        }
    }
    world.filler(conv, rng, end.saturating_sub(conv.len()));
}

fn end_walk(conv: &mut Conversation<'_>, world: &World, finish: &Tool, fact: usize) {
    let fact = &world.facts[fact];
    conv.reply(say::THINK_DONE, &[]);
    conv.begin_call(&finish.name.plain, SpanKind::Tool, Some(finish.declared));
    let answer = &fact.value.plain[..FINISH_CHARS.min(fact.value.plain.len())];
    conv.param(&[finish.params[0].name], answer, true, SpanKind::Finish, fact.seen);
    conv.end_call();
    let ok = &conv.lexicon.template(say::OK)[0];
    conv.open(Role::Tool);
    conv.push(ok, Class::Other);
    conv.close();
    conv.reply(say::THINK_REPEAT, &[]);
    conv.answer(ok, SpanKind::Echo, None);
    conv.end_reply();
}
