//! Which items are measured, and the bars that they must meet.

use anyhow::{Result, ensure};

use crate::sessions::Script;
use crate::tasks::items::{Kind, Shape};
use crate::tasks::lexicon::Lexicon;

/// Prompt lengths of needles: a fault at a length mod 4 or mod 128 meets one of them.
const LENGTHS: std::ops::Range<usize> = 600..728;

/// Items of one kind.
#[derive(Clone, Debug)]
pub struct Suite {
    pub name: &'static str,
    pub scripts: Vec<Script>,
    /// Share of right items that the shipped model must reach.
    pub bar: Option<f64>,
    /// The first so many are also run with other index keys.
    pub compared: usize,
    /// Prompt length of each item, where that is what is measured.
    pub lengths: Vec<usize>,
}

/// All suites with `count` items in the large ones.
///
/// # Errors
/// The generator failed.
pub fn suites(lexicon: &Lexicon, seed: u64, count: usize) -> Result<Vec<Suite>> {
    let few = (count / 4).max(2);
    let lengths: Vec<usize> =
        LENGTHS.flat_map(|length| std::iter::repeat_n(length, (count / 20).max(1))).collect();
    let needles = lengths.iter().map(|&ctx| shape(Kind::Needle, ctx, 1));
    let walks = |n: usize, ctx: (usize, usize), rounds: (usize, usize)| {
        let spread =
            move |i: usize, (low, high): (usize, usize), of: usize| low + (high - low) * i / of.max(1);
        let rounds = move |i: usize| rounds.0 + i % (rounds.1 - rounds.0 + 1);
        (0..n).map(move |i| shape(Kind::Walk, spread(i, ctx, n - 1), rounds(i)))
    };
    let plain = |kind, n: usize, ctx: usize| (0..n).map(move |i| shape(kind, ctx + 40 * (i % 20), 1));
    let mut suites = vec![
        suite(lexicon, seed, "walk", walks(count, (400, 1500), (2, 4)), Some(0.995), few)?,
        suite(lexicon, seed, "long walk", walks(few, (1600, 2400), (5, 8)), Some(0.98), few.min(4))?,
        suite(lexicon, seed, "needle", needles, Some(0.995), 2 * few)?,
        suite(lexicon, seed, "recall", plain(Kind::Recall, count, 400), None, count)?,
        suite(lexicon, seed, "trail", plain(Kind::Trail, count, 400), None, few)?,
        suite(lexicon, seed, "choice", plain(Kind::Choice, count, 300), Some(0.995), few)?,
        suite(lexicon, seed, "tool_choice none", plain(Kind::None, 2 * few, 300), None, 0)?,
        suite(lexicon, seed, "unknown key", plain(Kind::Unknown, 2 * few, 300), None, 0)?,
        suite(lexicon, seed, "chat", plain(Kind::Chat, count, 100), None, 0)?,
        suite(lexicon, seed, "echo", plain(Kind::Echo, 2 * few, 200), None, 0)?,
        suite(lexicon, seed, "topic", plain(Kind::Topic, 2 * few, 400), None, 0)?,
        suite(lexicon, seed, "system rule", plain(Kind::Rule, 2 * few, 0), None, 0)?,
    ];
    suites[2].lengths = lengths;
    Ok(suites)
}

/// Needles whose prompts have exactly `prompt` tokens and whose values at most `characters`.
pub(super) fn needles(
    lexicon: &Lexicon,
    seed: u64,
    count: usize,
    prompt: usize,
    characters: usize,
) -> Result<Suite> {
    // A fifth of all values has four characters, the fewest.
    let all =
        (0..16 * count as u64).map(|index| Script::new(lexicon, shape(Kind::Needle, prompt, 1), seed, index));
    let fits = |script: &Script| {
        // The token that ends the answer is none of the value's.
        script.turns.first().is_some_and(|turn| turn.start == prompt && turn.ids.len() <= characters + 1)
    };
    let fitting = all.filter(|script| script.as_ref().map_or(true, fits)).take(count);
    let scripts: Vec<Script> = fitting.collect::<Result<_>>()?;
    ensure!(scripts.len() == count, "{} needles of {prompt} tokens found, expected {count}", scripts.len());
    Ok(Suite { name: "needle", scripts, bar: None, compared: 0, lengths: Vec::new() })
}

fn shape(kind: Kind, ctx: usize, rounds: usize) -> Shape {
    Shape { kind, ctx, rounds, thinking: false }
}

fn suite(
    lexicon: &Lexicon,
    seed: u64,
    name: &'static str,
    shapes: impl Iterator<Item = Shape>,
    bar: Option<f64>,
    compared: usize,
) -> Result<Suite> {
    let scripts: Vec<Script> = (0..)
        .zip(shapes)
        .map(|(index, shape)| Script::new(lexicon, shape, seed, index))
        .collect::<Result<_>>()?;
    Ok(Suite { name, compared: compared.min(scripts.len()), scripts, bar, lengths: Vec::new() })
}
