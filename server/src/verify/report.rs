//! What was found, as data. Field names are stable: `--json` prints this.

use std::ops::Range;
use std::time::Duration;

use flashlane::ops::Mode;
use flashlane::step::{
    Hazard, Mutant, Party, Plan, Proved, Rule, critical_path, largest_clique, largest_peak, serial, width,
};
use serde::Serialize;

use super::Schedule;
use super::captured::Captured;
use super::check::Checked;
use super::target::Target;
use crate::cli::IndexK;

/// Random legal orders of which the largest peak of live bytes is taken.
const ORDERS: usize = 1000;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) proved: bool,
    pub(super) model: String,
    pub(super) step: Step,
    pub(super) mutant: Option<Mutation>,
    pub(super) arena: Arena,
    pub(super) checks: Vec<Check>,
    /// `null` if the step itself is not proved.
    pub(super) proof: Option<Counts>,
    pub(super) buckets: Vec<String>,
    /// Empty if the step itself is not proved.
    pub(super) loops: Vec<Loop>,
    /// The step as a GPU captured it, if one was asked for.
    pub(super) captured: Vec<Captured>,
    pub(super) hazards: Vec<Found>,
    pub(super) milliseconds: Milliseconds,
}

#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) bucket: String,
    pub(super) rows: usize,
    pub(super) max_positions: usize,
    pub(super) index_k: &'static str,
    pub(super) schedule: &'static str,
    pub(super) nodes: usize,
    pub(super) edges: usize,
    pub(super) lanes: usize,
    /// Nodes on the longest path.
    pub(super) critical_path: usize,
    /// The most nodes at one distance from the start.
    pub(super) width: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Mutation {
    pub(super) slug: &'static str,
    pub(super) place: String,
}

/// Bytes of the step's arena.
#[derive(Debug, Serialize)]
pub(super) struct Arena {
    /// As planned, for lanes side by side.
    pub(super) bytes: usize,
    /// What a plan for one stream would need.
    pub(super) serial_bytes: usize,
    /// Every value in bytes of its own.
    pub(super) unshared_bytes: usize,
    /// No plan that holds in every order is smaller.
    pub(super) lower_bound_bytes: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) check: &'static str,
    pub(super) result: Verdict,
    pub(super) hazards: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Passed,
    Failed,
    /// The step itself is not proved.
    Skipped,
}

#[derive(Debug, Serialize)]
pub(super) struct Counts {
    pub(super) nodes: usize,
    pub(super) edges: usize,
    /// Conflicting pairs of accesses, all ordered.
    pub(super) pairs: usize,
    /// Reads, each of which finds its value.
    pub(super) reads: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Loop {
    pub(super) steps_in_flight: usize,
    pub(super) ordered_pairs_of_buckets: usize,
    /// `null` if there are hazards. Sums over all pairs.
    pub(super) proof: Option<Counts>,
}

#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub(super) check: &'static str,
    pub(super) text: String,
    pub(super) first: Option<Side>,
    pub(super) second: Option<Side>,
    pub(super) memory: Option<String>,
    pub(super) bytes: Option<Range<usize>>,
    pub(super) nearest_common_ancestor: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Side {
    pub(super) op: String,
    pub(super) lane: String,
    pub(super) access: &'static str,
    pub(super) value: String,
    pub(super) before_wait: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Milliseconds {
    /// Of every bucket, its plan included.
    pub(super) build: f64,
    pub(super) proof: f64,
    #[serde(rename = "loop")]
    pub(super) looped: f64,
    pub(super) total: f64,
}

impl Report {
    pub(super) fn new(target: &Target, checked: &Checked) -> Self {
        let hazards = hazards(checked);
        let pairs = target.shapes.len() * target.shapes.len();
        Self {
            proved: hazards.is_empty(),
            model: target.name.clone(),
            step: step(target, checked),
            mutant: checked
                .mutant
                .as_ref()
                .map(|(m, place)| Mutation { slug: m.slug(), place: place.clone() }),
            arena: arena(checked),
            checks: checks(&hazards),
            proof: checked.step.as_ref().ok().map(Counts::from),
            buckets: target.shapes.iter().map(ToString::to_string).collect(),
            loops: checked
                .loops
                .iter()
                .map(|l| Loop {
                    steps_in_flight: l.in_flight,
                    ordered_pairs_of_buckets: pairs,
                    proof: l.result.as_ref().ok().map(Counts::from),
                })
                .collect(),
            captured: Vec::new(),
            hazards,
            milliseconds: Milliseconds {
                build: milliseconds(checked.times.build),
                proof: milliseconds(checked.times.proof),
                looped: milliseconds(checked.times.looped),
                total: milliseconds(checked.times.total),
            },
        }
    }
}

impl From<&Proved> for Counts {
    fn from(p: &Proved) -> Self {
        Self { nodes: p.nodes, edges: p.edges, pairs: p.pairs, reads: p.reads }
    }
}

impl Found {
    fn new(check: &'static str, hazard: &Hazard) -> Self {
        Self {
            check,
            text: hazard.to_string(),
            first: Some(Side::from(&hazard.first)),
            second: hazard.second.as_ref().map(Side::from),
            memory: Some(hazard.space.to_string()),
            bytes: hazard.bytes.clone(),
            nearest_common_ancestor: hazard.ancestor.clone(),
        }
    }

    fn words(check: &'static str, error: &dyn std::error::Error) -> Self {
        let text = format!("{check}: {error}");
        let (first, second, memory, bytes) = (None, None, None, None);
        Self { check, text, first, second, memory, bytes, nearest_common_ancestor: None }
    }
}

impl From<&Party> for Side {
    fn from(party: &Party) -> Self {
        Self {
            op: party.op.clone(),
            lane: party.lane.clone(),
            access: if party.mode == Mode::Write { "writes" } else { "reads" },
            value: party.object.clone(),
            before_wait: party.early,
        }
    }
}

fn step(target: &Target, checked: &Checked) -> Step {
    let (graph, shape) = (&checked.case.graph, target.shape());
    Step {
        bucket: shape.to_string(),
        rows: shape.rows(),
        max_positions: shape.max_positions,
        index_k: match target.index_k {
            IndexK::Bf16 => "bf16",
            IndexK::Fp8 => "fp8",
            IndexK::Fp4 => "fp4",
        },
        schedule: if target.schedule == Schedule::Serial { "serial" } else { "forked" },
        nodes: graph.nodes.len(),
        edges: graph.edges.len(),
        lanes: graph.lanes.len(),
        critical_path: critical_path(graph),
        width: width(graph),
    }
}

fn arena(checked: &Checked) -> Arena {
    let graph = &checked.built;
    Arena {
        bytes: checked.case.plan.arena_bytes,
        serial_bytes: Plan::shared(&serial(graph)).arena_bytes,
        unshared_bytes: Plan::unshared(graph).arena_bytes,
        lower_bound_bytes: largest_peak(graph, ORDERS, 1).max(largest_clique(graph)),
    }
}

fn hazards(checked: &Checked) -> Vec<Found> {
    let rule = |h: &Hazard| if h.rule == Rule::Value { "value" } else { "order" };
    let step = checked.step.as_ref().err().into_iter().flatten().map(|h| Found::new(rule(h), h));
    let loops = checked.loops.iter().filter_map(|l| l.result.as_ref().err());
    let looped = loops.flatten().map(|h| Found::new("loop", h));
    let purity = checked.purity.as_ref().err().map(|e| Found::words("purity", e));
    let layout = checked.layout.as_ref().err().map(|e| Found::words("layout", e));
    step.chain(looped).chain(purity).chain(layout).collect()
}

fn checks(hazards: &[Found]) -> Vec<Check> {
    let count = |check: &str| hazards.iter().filter(|h| h.check == check).count();
    let unproved = count("order") + count("value") > 0;
    let one = |check| {
        let result = match count(check) {
            0 if unproved && check == "loop" => Verdict::Skipped,
            0 => Verdict::Passed,
            _ => Verdict::Failed,
        };
        Check { check, result, hazards: count(check) }
    };
    ["order", "value", "loop", "purity", "layout"].map(one).into()
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// A mutant and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    pub mutant: &'static str,
    pub about: &'static str,
    pub place: String,
    pub caught_by: Vec<&'static str>,
    pub hazards: usize,
}

impl Caught {
    pub(super) fn new(mutant: Mutant, report: &Report) -> Self {
        let failed = report.checks.iter().filter(|c| c.result == Verdict::Failed);
        Self {
            mutant: mutant.slug(),
            about: mutant.about(),
            place: report.mutant.as_ref().map_or_else(String::new, |m| m.place.clone()),
            caught_by: failed.map(|c| c.check).collect(),
            hazards: report.hazards.len(),
        }
    }
}
