//! Judges steps: tokens, logits, and the choices of experts and rows.

use std::fmt;
use std::ops::Range;

use flashlane::model::Loaded;
use flashlane::ops::{Op, Router, Routing, TopK, Value};
use flashlane::step::{Class, Graph, Memory, Plan};

use crate::bound::{SCORE_SLOPE, SPREAD, index_sigma, rms, sigma};
use crate::models::Model;
use crate::pair::{Ran, Step};

/// What a step holds of a session.
pub(crate) struct Shown {
    pub(crate) session: usize,
    /// Its token rows.
    pub(crate) rows: Range<usize>,
    /// Where its logits are, if it is sampled from.
    pub(crate) sample: Option<usize>,
    /// Both sides began with the same caches.
    pub(crate) fresh: bool,
}

#[derive(Clone, Copy, Default)]
struct Session {
    /// A choice that the bound allows differed: what follows may differ by more.
    parted: bool,
    excused: bool,
}

/// Sessions so far, and what was found. A difference that nothing excuses panics.
pub(crate) struct Judge<'a> {
    model: &'a Model,
    all: Vec<Session>,
    pub(crate) sessions: usize,
    pub(crate) excused: usize,
    pub(crate) tokens: usize,
    /// Tokens whose logits were held to the bound.
    pub(crate) held: usize,
    /// The largest difference of a logit that was held, over its bound.
    worst: f64,
    /// Choices that differed first in a step.
    choices: usize,
}

impl fmt::Display for Judge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} sessions excused; {} tokens, {} with logits within {:.3} of the bound; {} first choices differ",
            self.excused, self.sessions, self.tokens, self.held, self.worst, self.choices
        )
    }
}

impl<'a> Judge<'a> {
    pub(crate) fn new(model: &'a Model) -> Self {
        Self { model, all: Vec::new(), sessions: 0, excused: 0, tokens: 0, held: 0, worst: 0.0, choices: 0 }
    }

    pub(crate) fn end_token(&self) -> u32 {
        self.model.config.eos_token_id
    }

    /// The number of the first of `count` new sessions.
    pub(crate) fn begin(&mut self, count: usize) -> usize {
        let first = self.all.len();
        self.all.resize(first + count, Session::default());
        self.sessions += count;
        first
    }

    pub(crate) fn step(&mut self, step: &Step, ran: &Ran, all: &[Shown]) {
        for shown in all {
            if shown.fresh {
                self.all[shown.session].parted = false;
            }
            if !self.all[shown.session].parted {
                let differs = first_choice(self.model, step, ran, &shown.rows);
                self.all[shown.session].parted = differs;
                self.choices += usize::from(differs);
            }
            if let Some(row) = shown.sample {
                self.sample(step, ran, shown.session, row);
            }
        }
    }

    fn sample(&mut self, step: &Step, ran: &Ran, session: usize, row: usize) {
        let (io, vocab) = (&step.model.io, self.model.config.vocab_size);
        let logits = |memory: &Memory| memory.host::<f32>(&io.logits)[row * vocab..][..vocab].to_vec();
        let token = |memory: &Memory| memory.host::<i32>(&io.next)[row];
        let (ours, theirs) = (logits(&ran.cpu), logits(&ran.other));
        let bound = SPREAD * sigma(self.model.config.num_hidden_layers) * rms(&ours);
        let worst = ours.iter().zip(&theirs).fold(0f64, |m, (a, b)| m.max(f64::from((a - b).abs())));
        assert!(worst.is_finite(), "session {session}: a logit is not a number");
        self.tokens += 1;
        let parted = self.all[session].parted;
        if !parted {
            assert!(worst <= bound, "session {session}: a logit is off by {worst}, allowed {bound}");
            self.held += 1;
            self.worst = self.worst.max(worst / bound);
        }
        if token(&ran.cpu) == token(&ran.other) {
            return;
        }
        let gap = top_gap(&ours);
        assert!(
            parted || gap <= 2.0 * bound,
            "session {session}: another token, by a gap of {gap}, allowed {bound} twice"
        );
        self.excused += usize::from(!self.all[session].excused);
        self.all[session].excused = true;
    }
}

/// Between the two largest.
fn top_gap(logits: &[f32]) -> f64 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    f64::from(sorted[0] - sorted[1])
}

/// Whether any choice of these rows differs. In the first node where one does, every row's gap must be within the bound; after
/// that node differences are consequences.
pub(crate) fn first_choice(model: &Model, step: &Step, ran: &Ran, rows: &Range<usize>) -> bool {
    let mut layer = 0;
    for node in &step.model.graph.nodes {
        let differs = match &node.op {
            Op::TopK(op) => rows.clone().any(|row| rows_differ(op, step, ran, row, layer)),
            Op::Router(op) => {
                let differs = rows.clone().any(|row| experts_differ(op, model, step, ran, row, layer));
                layer += 1;
                differs
            }
            _ => false,
        };
        if differs {
            return true;
        }
    }
    false
}

/// Elements of row `row` of a value of the step.
pub(crate) fn row<E: bytemuck::Pod>(
    graph: &Graph,
    plan: &Plan,
    memory: &Memory,
    value: &Value,
    row: Range<usize>,
) -> Vec<E> {
    let bytes = match plan.offsets[value.buffer.0 as usize] {
        Some(start) => &memory.arena[start..start + value.bytes()],
        None => {
            assert!(matches!(graph.buffer(value.buffer).class, Class::Input | Class::Output));
            memory.host_bytes(value.buffer)
        }
    };
    let size = size_of::<E>();
    bytes[row.start * size..row.end * size].chunks_exact(size).map(bytemuck::pod_read_unaligned).collect()
}

fn of(width: usize, at: usize) -> Range<usize> {
    at * width..(at + 1) * width
}

/// What one side alone has chosen: the largest distance of a score that only the CPU took to one that only the other took.
fn swapped(ours: &[i32], theirs: &[i32], score: impl Fn(usize) -> f64) -> f64 {
    let only = |a: &[i32], b: &[i32]| -> Vec<f64> {
        let alone = a.iter().filter(|id| !b.contains(id));
        alone.map(|id| usize::try_from(*id).map_or(f64::INFINITY, &score)).collect()
    };
    let taken = only(ours, theirs).into_iter().fold(f64::NEG_INFINITY, f64::max);
    let instead = only(theirs, ours).into_iter().fold(f64::INFINITY, f64::min);
    taken - instead
}

fn rows_differ(op: &TopK, step: &Step, ran: &Ran, at: usize, layer: usize) -> bool {
    let (graph, plan) = (&step.model.graph, &step.plan);
    let chosen = |memory| row::<i32>(graph, plan, memory, &op.selected, of(op.k, at));
    let (ours, theirs) = (chosen(&ran.cpu), chosen(&ran.other));
    if ours == theirs {
        return false;
    }
    let position = row::<i32>(graph, plan, &ran.cpu, &op.tokens.position, at..at + 1)[0];
    let visible = usize::try_from(position + 1).unwrap() / 4;
    let scores = row::<f32>(graph, plan, &ran.cpu, &op.logits, at * op.width..at * op.width + visible);
    let gap = swapped(&ours, &theirs, |id| f64::from(scores[id]));
    let bound = 2.0 * SPREAD * index_sigma(layer) * rms(&scores);
    assert!(
        gap <= bound,
        "layer {layer}, row {at}: rows {theirs:?}, the CPU's {ours:?}; gap {gap}, allowed {bound}"
    );
    true
}

fn experts_differ(op: &Router, model: &Model, step: &Step, ran: &Ran, at: usize, layer: usize) -> bool {
    let (graph, plan) = (&step.model.graph, &step.plan);
    let chosen = |memory| row::<i32>(graph, plan, memory, &op.ids, of(op.k, at));
    let (ours, theirs) = (chosen(&ran.cpu), chosen(&ran.other));
    if ours == theirs {
        return false;
    }
    let Routing::Scored { bias } = &op.routing else {
        panic!("layer {layer}, row {at}: a table gives experts {theirs:?}, the CPU's {ours:?}")
    };
    let Class::Weight(bias) = graph.buffer(bias.buffer).class else { panic!("the bias is no weight") };
    let bias = model.loaded.iter().find_map(|(id, loaded)| match loaded {
        Loaded::Floats(values) if *id == bias => Some(values),
        _ => None,
    });
    let (bias, logits) = (bias.unwrap(), row::<f32>(graph, plan, &ran.cpu, &op.logits, of(op.experts, at)));
    let score = |id: usize| f64::from(logits[id]).exp().ln_1p().sqrt() + f64::from(bias[id]);
    let gap = swapped(&ours, &theirs, score);
    let bound = 2.0 * SPREAD * SCORE_SLOPE * sigma(layer + 1) * rms(&logits);
    assert!(
        gap <= bound,
        "layer {layer}, row {at}: experts {theirs:?}, the CPU's {ours:?}; gap {gap}, allowed {bound}"
    );
    true
}
