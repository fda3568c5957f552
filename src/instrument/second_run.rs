//! One step being run a second time, and what both runs left held side by side.

use std::collections::HashMap;
use std::ops::Range;

use super::compare::{logits, missing};
use super::differential::{Difference, Differences};
use super::pools::{Pool, Pools, Role};
use super::probe::{Probe, Store, Tamper};
use super::report::Quantity;
use super::shadow::Shadow;
use crate::engine::Prepared;
use crate::model::CacheLayout;
use crate::ops::{BufferId, Contents, Mode, Value};
use crate::step::{Class, HostIo, Node};

/// The memories of one prepared step's second run.
#[derive(Clone, Debug)]
pub(super) struct Second {
    pub(super) memory: HostIo,
    /// Inputs and outputs of the first run.
    pub(super) first: HostIo,
}

impl Second {
    pub(super) fn new(prepared: &Prepared) -> Self {
        let io = HostIo::new(&prepared.step.graph);
        Self { memory: io.clone(), first: io }
    }
}

/// One step being run again.
pub(super) struct SecondRun<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) shadow: &'a Shadow,
    pub(super) pools: &'a Pools,
    pub(super) layout: &'a CacheLayout,
    pub(super) index: usize,
}

impl SecondRun<'_> {
    pub(super) fn again(
        &self,
        second: &mut Second,
        probe: &mut dyn Probe,
        tampers: &mut [Tamper<'_>],
    ) -> Result<(), String> {
        let Second { memory, first } = second;
        self.shadow.inputs(self.prepared, first, memory).map_err(|error| error.to_string())?;
        probe.rerun(self.index, memory, tampers)
    }

    pub(super) fn compare(&self, second: &Second, probe: &mut dyn Probe) -> Result<Differences, String> {
        let mut found = Differences::default();
        self.logits(second, &mut found);
        self.entries(second, &mut found);
        self.stored(second, probe, &mut found)?;
        Ok(found)
    }

    /// Rows of logits, where a token was sampled.
    fn logits(&self, Second { memory, first }: &Second, found: &mut Differences) {
        let io = &self.prepared.step.io;
        let rows = first.host::<i32>(&io.sample_rows);
        let vocab = io.logits.len / rows.len().max(1);
        let (ours, theirs) = (first.host::<f32>(&io.logits), memory.host::<f32>(&io.logits));
        let mut all =
            Difference { quantity: Quantity::Logits, layer: None, count: 0, max_abs: 0.0, argmax: 0 };
        for sample in (0..rows.len()).filter(|&s| rows[s] >= 0) {
            let row = sample * vocab..(sample + 1) * vocab;
            let apart = logits(&ours[row.clone()], &theirs[row]);
            let token = first.host::<i32>(&io.next)[sample] != memory.host::<i32>(&io.next)[sample];
            all.count += usize::from(apart.bits || token);
            all.argmax += usize::from(apart.argmax);
            all.max_abs = all.max_abs.max(apart.max_abs);
            found.logits_rows += 1;
        }
        if all.count > 0 {
            found.all.push(all);
        }
    }

    /// Selected rows and experts of each token, by layer.
    fn entries(&self, Second { memory, first }: &Second, found: &mut Differences) {
        let io = &self.prepared.step.io;
        let positions = first.host::<i32>(&io.position);
        let count = |value: &Value| -> usize {
            let width = value.len / positions.len().max(1);
            let (ours, theirs) = (first.host::<i32>(value), memory.host::<i32>(value));
            let rows =
                (0..positions.len()).filter(|&t| positions[t] >= 0).map(|t| t * width..(t + 1) * width);
            rows.map(|row| missing(&ours[row.clone()], &theirs[row])).sum()
        };
        let live = positions.iter().filter(|p| **p >= 0).count();
        for (layer, (selected, experts)) in io.selected.iter().zip(&io.experts).enumerate() {
            if let Some(selected) = selected {
                found.selected_rows += live * selected.len / positions.len().max(1);
                found.add(Quantity::Selected, Some(layer), count(selected));
            }
            found.add(Quantity::Experts, Some(layer), count(experts));
        }
    }

    /// Cache rows and states, where `touched` says that the step stored some.
    fn stored(&self, second: &Second, probe: &mut dyn Probe, found: &mut Differences) -> Result<(), String> {
        let graph = &self.prepared.step.graph;
        let contents = Inputs { prepared: self.prepared, memory: &second.first };
        for node in storing(self.prepared) {
            let touched = node.op.touched(&contents).map_err(|error| error.to_string())?;
            for write in touched.iter().filter(|t| t.mode == Mode::Write) {
                match graph.buffer(write.buffer).class {
                    Class::Pool(id) => {
                        let Some(pool) = self.pools.get(id) else { continue };
                        let rows = self.pool_rows(pool, &write.ranges, probe)?;
                        found.add(role_is(pool.role), Some(pool.layer), rows);
                    }
                    Class::State(id) => {
                        let Some(state) = self.layout.states().find(|s| s.id == id) else { continue };
                        let pages: HashMap<usize, usize> =
                            self.shadow.slots().iter().map(|(&a, &b)| (a as usize, b as usize)).collect();
                        let differing =
                            differing(Store::State(id), state.len * 4, &pages, &write.ranges, probe)?;
                        found.add(Quantity::State, layer_of(&node.scope), differing.len());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Rows of a pool that the two runs stored differently.
    fn pool_rows(
        &self,
        pool: &Pool,
        ranges: &[Range<usize>],
        probe: &mut dyn Probe,
    ) -> Result<usize, String> {
        let pages = self.shadow.pages(pool.role).iter().map(|(&a, &b)| (a as usize, b as usize)).collect();
        let bytes = differing(Store::Pool(pool.id), pool.page_bytes, &pages, ranges, probe)?;
        let row = |&at: &usize| (at / pool.page_bytes, pool.row_at(at % pool.page_bytes));
        let mut rows: Vec<_> = bytes.iter().map(row).collect();
        rows.sort_unstable();
        rows.dedup();
        Ok(rows.len())
    }
}

pub(super) const fn role_is(role: Role) -> Quantity {
    match role {
        Role::Window => Quantity::Window,
        Role::Rows => Quantity::Rows,
        Role::Index => Quantity::Index,
    }
}

/// The nodes that write to what outlives the step.
pub(super) fn storing(prepared: &Prepared) -> impl Iterator<Item = &Node> {
    let graph = &prepared.step.graph;
    let kept = |id: BufferId| matches!(graph.buffer(id).class, Class::Pool(_) | Class::State(_));
    let stores =
        move |node: &&Node| node.op.regions().iter().any(|a| a.mode == Mode::Write && kept(a.region.buffer));
    graph.nodes.iter().filter(stores)
}

/// `layer 3` as the model's builder names scopes.
fn layer_of(scope: &str) -> Option<usize> {
    scope.strip_prefix("layer ").and_then(|number| number.parse().ok())
}

/// The inputs of the first run decide what a node touches.
pub(super) struct Inputs<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) memory: &'a HostIo,
}

impl Contents for Inputs<'_> {
    fn bytes(&self, value: &Value) -> Option<&[u8]> {
        let input = |id: BufferId| self.prepared.step.graph.buffer(id).class == Class::Input;
        input(value.buffer).then(|| self.memory.host_bytes(value.buffer))
    }
}

/// Offsets of bytes in `ranges` that differ from those of the second run; `pages` says where each page of the first has its
/// counterpart.
fn differing(
    store: Store,
    page_bytes: usize,
    pages: &HashMap<usize, usize>,
    ranges: &[Range<usize>],
    probe: &mut dyn Probe,
) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let page = at / page_bytes;
            let end = range.end.min((page + 1) * page_bytes);
            let to = pages
                .get(&page)
                .ok_or_else(|| format!("{store:?}: the second run has no page for {page}"))?;
            ours.resize(end - at, 0);
            theirs.resize(end - at, 0);
            probe.read(store, at, &mut ours)?;
            probe.read(store, to * page_bytes + at % page_bytes, &mut theirs)?;
            let bytes = (at..end).zip(ours.iter().zip(&theirs));
            all.extend(bytes.filter(|(_, (a, b))| a != b).map(|(at, _)| at));
            at = end;
        }
    }
    Ok(all)
}
