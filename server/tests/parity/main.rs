//! Whole steps on a GPU against the CPU: the built-in model on its own tasks, and a random model shaped as DeepSeek-V4-Flash.
//!
//! Without a GPU the oracle takes its place, at reduced counts, so that the comparison itself stays tested. The CPU leads: its
//! greedy token is fed to both, so after a difference both go on from the same text. What may differ, and by how much, is
//! derived in [`bound`].
#![allow(clippy::unwrap_used)] // A test may panic.

mod bound;
mod judge;
mod models;
mod pair;
mod stages;

use judge::Judge;
use models::Model;
use pair::{Caching, Other, Pair};

/// How much of each comparison runs.
struct Counts {
    /// Sessions that run at once, and how often.
    rows: usize,
    batches: usize,
    tokens: usize,
}

impl Counts {
    fn sessions(&self) -> usize {
        self.rows * self.batches
    }
}

/// Sessions of greedy tokens: equal, or excused in at most two of a hundred.
fn sessions(model: &Model, other: &Other, counts: &Counts, caching: Caching, prompts: &[Vec<u32>]) {
    let mut judge = Judge::new(model);
    for prompts in prompts.chunks(counts.rows) {
        Pair::new(model, other, counts.rows, caching, false).play(prompts, counts.tokens, &mut judge);
    }
    eprintln!("{}: {judge}", other.name);
    assert_eq!(judge.sessions, counts.sessions());
    assert!(50 * judge.excused <= judge.sessions, "more than 2 % of sessions are excused: {judge}");
    assert!(judge.tokens >= judge.sessions && judge.held > 0, "{judge}");
    // From caches of its own the other side goes another way once a choice differs; from the CPU's it comes back at each step.
    assert!(caching == Caching::Own || 2 * judge.held > judge.tokens, "{judge}");
}

#[test]
fn the_built_in_model_says_the_same() {
    let model = models::built_in();
    let other = Other::of(&model);
    let counts = match other.reduced {
        false => Counts { rows: 20, batches: 10, tokens: 24 },
        true => Counts { rows: 2, batches: 1, tokens: 3 },
    };
    let prompts = models::task_prompts(counts.sessions(), other.reduced);
    sessions(&model, &other, &counts, Caching::Own, &prompts);
}

#[test]
fn a_random_model_shaped_as_flash_says_the_same() {
    let model = models::flash_shaped();
    let other = Other::of(&model);
    let counts = match other.reduced {
        false => Counts { rows: 20, batches: 5, tokens: 24 },
        true => Counts { rows: 3, batches: 2, tokens: 4 },
    };
    let prompts = models::random_prompts(&model, counts.sessions(), other.reduced);
    sessions(&model, &other, &counts, Caching::Leaders, &prompts);
}

/// Every value of decode steps, in the order in which the nodes make them.
#[test]
fn decode_steps_agree_stage_by_stage() {
    for (model, prompts) in [
        (models::built_in(), models::task_prompts(4, true)),
        (models::flash_shaped(), models::random_prompts(&models::flash_shaped(), 4, false)),
    ] {
        let other = Other::of(&model);
        let mut pair = Pair::new(&model, &other, prompts.len(), Caching::Leaders, true);
        let found = pair.compare_stages(&prompts, if other.reduced { 2 } else { 8 });
        eprintln!("{}: {found}", other.name);
        assert!(2 * found.held > found.values, "too many values follow a choice that differs: {found}");
    }
}

#[test]
#[should_panic(expected = "attention of layer")]
fn a_wrong_attention_is_found_by_its_stage() {
    let model = models::flash_shaped();
    let other = Other::planted(&model);
    let prompts = models::random_prompts(&model, 4, false);
    Pair::new(&model, &other, prompts.len(), Caching::Leaders, true).compare_stages(&prompts, 2);
}
