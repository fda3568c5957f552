//! The inputs of the latest steps, from which `touched` says afterwards which node declared a write to which bytes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::pools::stores_to;
use crate::engine::Prepared;
use crate::ops::{BufferId, Contents, Mode, Value};
use crate::step::{HostIo, PoolId};

/// Steps that are remembered; what lies further back has no names.
pub const REMEMBERED: usize = 256;

#[derive(Clone, Debug)]
struct Past {
    step: u64,
    /// Which of the prepared steps ran.
    index: usize,
    inputs: Inputs,
}

/// The inputs that decide where a step stores.
#[derive(Clone, Debug, Default)]
struct Inputs(HashMap<BufferId, Vec<u8>>);

impl Contents for Inputs {
    fn bytes(&self, value: &Value) -> Option<&[u8]> {
        self.0.get(&value.buffer).map(Vec::as_slice)
    }
}

#[derive(Clone, Debug)]
pub struct History {
    steps: Arc<[Prepared]>,
    past: VecDeque<Past>,
}

impl History {
    #[must_use]
    pub fn new(steps: Arc<[Prepared]>) -> Self {
        Self { steps, past: VecDeque::new() }
    }

    /// Remembers run number `step`, of prepared step `index`, whose inputs lie in `memory`.
    pub fn push(&mut self, step: u64, index: usize, memory: &HostIo) {
        let io = &self.steps[index].step.io;
        let deciding = [io.position, io.window_slot, io.c4_slot, io.c128_slot, io.state_slot];
        let inputs = deciding.iter().map(|v| (v.buffer, memory.host_bytes(v.buffer).to_vec())).collect();
        if self.past.len() == REMEMBERED {
            self.past.pop_front();
        }
        self.past.push_back(Past { step, index, inputs: Inputs(inputs) });
    }

    /// Of the steps after `since`: nodes that declared a write to some of `ranges` of a pool, with their steps, and all
    /// nodes that store to it.
    #[must_use]
    pub fn writers(&self, pool: PoolId, ranges: &[Range<usize>], since: u64) -> (Vec<String>, Vec<String>) {
        let (mut declared, mut all) = (Vec::new(), BTreeSet::new());
        for past in self.past.iter().filter(|past| past.step > since) {
            let model = &self.steps[past.index].step;
            let graph = &model.graph;
            for id in graph.node_ids() {
                let node = graph.node(id);
                if stores_to(graph, &node.op) != Some(pool) {
                    continue;
                }
                let label = format!("{}({})", graph.label(id), model.shape);
                let touched = node.op.touched(&past.inputs).unwrap_or_default();
                let writes = touched.iter().filter(|t| t.mode == Mode::Write);
                let mut written = writes
                    .filter(|t| graph.buffer(t.buffer).class == crate::step::Class::Pool(pool))
                    .flat_map(|t| &t.ranges);
                if written.any(|w| ranges.iter().any(|r| w.start < r.end && r.start < w.end)) {
                    declared.push(format!("{label}@step {}", past.step));
                }
                all.insert(label);
            }
        }
        (declared, all.into_iter().collect())
    }
}
