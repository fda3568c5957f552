//! The plan: where each transient lies in the arena.

use super::graph::{Class, Graph};

/// Buffers start at multiples of this.
pub const ALIGN: usize = 256;

/// Byte offsets in the arena, by buffer; `None` for buffers that live elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub offsets: Vec<Option<usize>>,
    pub arena_bytes: usize,
}

impl Plan {
    /// Every transient in bytes of its own: the largest plan, with nothing to prove about sharing.
    #[must_use]
    pub fn unshared(graph: &Graph) -> Self {
        let mut plan = Self::default();
        for buffer in &graph.buffers {
            let transient = buffer.class == Class::Transient;
            plan.offsets.push(transient.then_some(plan.arena_bytes));
            if transient {
                plan.arena_bytes += buffer.bytes.next_multiple_of(ALIGN);
            }
        }
        plan
    }
}
