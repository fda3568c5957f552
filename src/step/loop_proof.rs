//! The loop proof: replays in a row, with everything outside the graphs that touches their memory, as one program.
//!
//! Each step has agents: the host writes its inputs to a pinned ring, the device copies them in, the graph replays, outputs
//! are copied out to a ring, the host reads them, pages of finished requests are freed, and a canary reads settled rows.
//! Steps share one arena. Rows that one step stores are settled in the next; a page that one step may still read can be
//! freed after it and stored to by a later one.
//!
//! Which rows those are is the cache's business: here they are one range per step that stands for all of them.

use std::ops::Range;

use rayon::prelude::*;

use super::graph::{Class, Graph, NodeId};
use super::hazard::Hazard;
use super::plan::Plan;
use super::program::{Kind, ObjectId, Program, SETTLED_ROWS, Space, Use};
use super::proof::{Proved, prove};
use crate::ops::{BufferId, Mode};

/// A planned step of a bucket; a bucket that comes again has the same name.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    pub name: &'a str,
    pub graph: &'a Graph,
    pub plan: &'a Plan,
    /// Outputs that lie in the arena and that the host reads there.
    pub live: &'a [BufferId],
}

/// How the engine drives its steps; the default is sound, and each field can break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Slots of the rings of pinned inputs and outputs.
    pub ring: usize,
    /// A step's inputs are written once the host has read the outputs of the step this many before it.
    pub ahead: usize,
    /// Pages are freed only after the host has read the outputs of the last step that may use them.
    pub frees_after_step: bool,
    /// The canary runs in stream order, beside the replay that it watches.
    pub canary_in_order: bool,
    /// Kernels read settled rows before their wait.
    pub early_settled: bool,
}

impl Default for Drive {
    fn default() -> Self {
        Self { ring: 2, ahead: 2, frees_after_step: true, canary_in_order: true, early_settled: false }
    }
}

/// Proves the loop for every ordered pair of buckets: A, B and A again, so that what comes round after two steps does.
///
/// # Errors
/// The hazards of the first pair that has any.
pub fn prove_loop(buckets: &[Replay<'_>], drive: Drive) -> Result<Proved, Vec<Hazard>> {
    let mut all = Proved::default();
    for a in buckets {
        let row: Vec<_> = buckets.par_iter().map(|b| prove(&unroll(&[*a, *b, *a], drive))).collect();
        for proved in row {
            let proved = proved?;
            all.nodes += proved.nodes;
            all.edges += proved.edges;
            all.pairs += proved.pairs;
            all.reads += proved.reads;
        }
    }
    Ok(all)
}

/// The steps in a row as a program.
#[must_use]
pub fn unroll(replays: &[Replay<'_>], drive: Drive) -> Program {
    let mut unrolled = Unrolled { program: Program::default(), drive, tails: Vec::new() };
    let mut stages: Vec<Stage> = Vec::new();
    for (step, replay) in replays.iter().enumerate() {
        let bucket = replays.iter().position(|r| r.name == replay.name).unwrap_or(step);
        let stage = unrolled.stage(step, bucket, replay);
        unrolled.order(&stage, step, &stages);
        stages.push(stage);
    }
    unrolled.program
}

/// The nodes of one step.
struct Stage {
    write: NodeId,
    copy_in: NodeId,
    sources: Vec<NodeId>,
    sinks: Vec<NodeId>,
    copy_out: NodeId,
    host_reads: NodeId,
    free: NodeId,
    canary: NodeId,
}

struct Unrolled {
    program: Program,
    drive: Drive,
    /// Rows stored so far: their space, step and object.
    tails: Vec<(Space, usize, ObjectId)>,
}

/// An object and its place.
type Placed = (ObjectId, Range<usize>);

/// What the accesses of a step mean in the loop.
#[derive(Default)]
struct Objects {
    /// By object of [`Program::of`]: where its accesses go. Rows have places of their own; bytes keep theirs.
    meanings: Vec<Meaning>,
    inputs: Vec<Placed>,
    outputs: Vec<Placed>,
    live: Vec<Placed>,
    settled: Vec<Placed>,
    freed: Vec<Placed>,
}

enum Meaning {
    Bytes(ObjectId),
    Rows(Vec<Placed>),
}

impl Unrolled {
    fn stage(&mut self, step: usize, bucket: usize, replay: &Replay<'_>) -> Stage {
        let objects = self.objects(step, bucket, replay);
        let (pinned_in, pinned_out) = (self.pinned(step, false), self.pinned(step, true));
        let agent = |what: &str| format!("{what} of step {step} ({})", replay.name);

        let write = self.program.node(agent("write inputs"), "host", vec![pinned(pinned_in, Mode::Write)]);
        let mut uses = all(&objects.inputs, Mode::Write);
        uses.push(pinned(pinned_in, Mode::Read));
        let copy_in = self.program.node(agent("copy in"), "stream", uses);
        let (sources, sinks) = self.replay(step, replay, &objects);
        let mut uses = all(&objects.outputs, Mode::Read);
        uses.push(pinned(pinned_out, Mode::Write));
        let copy_out = self.program.node(agent("copy out"), "stream", uses);
        let mut uses = all(&objects.live, Mode::Read);
        uses.push(pinned(pinned_out, Mode::Read));
        let host_reads = self.program.node(agent("host reads"), "host", uses);
        // A freed page may be given to anyone, so freeing it counts as a write.
        let free = self.program.node(agent("page free"), "host", all(&objects.freed, Mode::Write));
        let canary = self.program.node(agent("canary"), "canary", all(&objects.settled, Mode::Read));
        Stage { write, copy_in, sources, sinks, copy_out, host_reads, free, canary }
    }

    fn order(&mut self, stage: &Stage, step: usize, before: &[Stage]) {
        let Drive { ahead, frees_after_step, canary_in_order, .. } = self.drive;
        let program = &mut self.program;
        program.order(stage.write, stage.copy_in);
        program.order(stage.copy_in, stage.copy_out);
        stage.sources.iter().for_each(|&node| program.order(stage.copy_in, node));
        stage.sinks.iter().for_each(|&node| program.order(node, stage.copy_out));
        program.order(stage.copy_out, stage.host_reads);
        program.order(if frees_after_step { stage.host_reads } else { stage.write }, stage.free);
        if canary_in_order {
            program.order(stage.copy_in, stage.canary);
            program.order(stage.canary, stage.copy_out);
        }
        if let Some(last) = before.last() {
            program.order(last.copy_out, stage.copy_in);
            program.order(last.write, stage.write);
            program.order(last.host_reads, stage.host_reads);
        }
        if let Some(oldest) = step.checked_sub(ahead).and_then(|s| before.get(s)) {
            program.order(oldest.host_reads, stage.write);
            program.order(oldest.free, stage.write);
        }
    }

    /// A slot of a pinned ring as this step uses it.
    fn pinned(&mut self, step: usize, output: bool) -> ObjectId {
        let slot = u32::try_from(step % self.drive.ring.max(1)).unwrap_or(0);
        let (what, space) = if output { ("outputs", 1) } else { ("inputs", 0) };
        let space = Space::Host(u32::MAX - 2 * slot - space);
        self.program.object(format!("pinned {what} of step {step}"), space, Kind::Made)
    }

    /// Adds the graph's nodes over this step's objects; those without predecessors, and those without successors.
    fn replay(&mut self, step: usize, replay: &Replay<'_>, objects: &Objects) -> (Vec<NodeId>, Vec<NodeId>) {
        let mut single = Program::of(replay.graph, replay.plan);
        if self.drive.early_settled {
            single = single.with_early_settled();
        }
        let first = u32::try_from(self.program.nodes.len()).unwrap_or(u32::MAX);
        let (mut sources, mut sinks) = (vec![true; single.nodes.len()], vec![true; single.nodes.len()]);
        for mut edge in single.edges {
            sources[edge.to.0 as usize] = false;
            sinks[edge.from.0 as usize] = false;
            (edge.from.0, edge.to.0) = (edge.from.0 + first, edge.to.0 + first);
            self.program.edges.push(edge);
        }
        for mut actor in single.nodes {
            actor.label = format!("{} of step {step} ({})", actor.label, replay.name);
            actor.uses = actor.uses.iter().flat_map(|one| meant(one, objects)).collect();
            self.program.nodes.push(actor);
        }
        let those =
            |marks: &[bool]| (first..).zip(marks).filter(|(_, m)| **m).map(|(n, _)| NodeId(n)).collect();
        (those(&sources), those(&sinks))
    }

    fn objects(&mut self, step: usize, bucket: usize, replay: &Replay<'_>) -> Objects {
        let mut objects = Objects::default();
        for id in replay.graph.buffer_ids() {
            let buffer = replay.graph.buffer(id);
            let name = format!("{} of step {step}", buffer.name);
            match buffer.class {
                Class::Pool(pool) => self.rows(step, &name, Space::Pool(pool), &mut objects),
                Class::State(state) => self.rows(step, &name, Space::State(state), &mut objects),
                Class::Weight(weight) => {
                    let object = self.program.object(name, Space::Weight(weight), Kind::Frozen);
                    objects.meanings.push(Meaning::Bytes(object));
                }
                class => self.bytes(bucket, replay, id, class, name, &mut objects),
            }
        }
        objects
    }

    fn bytes(
        &mut self,
        bucket: usize,
        replay: &Replay<'_>,
        id: BufferId,
        class: Class,
        name: String,
        objects: &mut Objects,
    ) {
        let offset = replay.plan.offsets.get(id.0 as usize).copied().flatten();
        let own = Space::Host((u32::try_from(bucket).unwrap_or(0) << 20) + id.0);
        let object = self.program.object(name, offset.map_or(own, |_| Space::Arena(0)), Kind::Made);
        let at = offset.unwrap_or(0);
        let placed = (object, at..at + replay.graph.buffer(id).bytes);
        objects.meanings.push(Meaning::Bytes(object));
        match class {
            Class::Input => objects.inputs.push(placed),
            _ if replay.live.contains(&id) => objects.live.push(placed),
            Class::Output => objects.outputs.push(placed),
            _ => {}
        }
    }

    /// Rows of a pool or state. Of its space, 0 stands for rows older than all steps and never freed, `2s + 1` for those
    /// that step `s` stores, and `2s + 2` for those that step `s` may read, that are freed after it, and that the first step
    /// that may know of this stores to.
    fn rows(&mut self, step: usize, name: &str, space: Space, objects: &mut Objects) {
        let old = self.program.object(format!("{name} (settled)"), space, Kind::Given);
        let leaving = self.program.object(format!("{name} (settled, then freed)"), space, Kind::Given);
        let gone = self.program.object(format!("{name} (freed)"), space, Kind::Made);
        let tail = self.program.object(format!("{name} (tail)"), space, Kind::Made);
        let mut settled = vec![(old, 0..1)];
        let earlier = self.tails.iter().filter(|(of, ..)| *of == space);
        settled.extend(earlier.map(|(_, step, object)| (*object, stored(*step))));
        objects.settled.extend(settled.iter().cloned());
        settled.push((leaving, freed(step)));
        objects.freed.push((gone, freed(step)));
        let mut fresh = vec![(tail, stored(step))];
        fresh.extend(step.checked_sub(self.drive.ahead).map(|s| (tail, freed(s))));
        self.tails.push((space, step, tail));
        objects.meanings.extend([Meaning::Rows(settled), Meaning::Rows(fresh)]);
    }
}

const fn stored(step: usize) -> Range<usize> {
    2 * step + SETTLED_ROWS.end..2 * step + SETTLED_ROWS.end + 1
}

const fn freed(step: usize) -> Range<usize> {
    stored(step).end..stored(step).end + 1
}

/// A use of one step as uses of the loop.
fn meant(one: &Use, objects: &Objects) -> Vec<Use> {
    match &objects.meanings[one.object.0 as usize] {
        Meaning::Bytes(object) => vec![Use { object: *object, ..one.clone() }],
        Meaning::Rows(places) => places
            .iter()
            .map(|(object, range)| Use { object: *object, range: range.clone(), ..one.clone() })
            .collect(),
    }
}

fn all(places: &[Placed], mode: Mode) -> Vec<Use> {
    places
        .iter()
        .map(|(object, range)| Use { object: *object, range: range.clone(), mode, early: false })
        .collect()
}

fn pinned(object: ObjectId, mode: Mode) -> Use {
    Use { object, range: 0..1, mode, early: false }
}
