//! Host memory of a step: the arena that the plan laid out, the inputs and outputs, and the pools and states that outlive
//! steps. Hands an operation exactly the buffers that it declared, as slices, with no `unsafe`.

use bytemuck::{Pod, Zeroable};

use super::graph::{Class, Graph, Node};
use super::host_io::{HostIo, Place};
use super::plan::Plan;
use crate::ops::{BufferId, Mode, Value};

/// A cache line, so that every buffer can be viewed as any element type.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes aligned to 64.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    lines: Vec<Line>,
    len: usize,
}

impl Bytes {
    /// Zeros that the system gives: a page of memory is taken when it is first written.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { lines: bytemuck::zeroed_vec(len.div_ceil(64)), len }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// Pools and states, by their ids: what outlives a step.
#[derive(Clone, Debug, Default)]
pub struct Resident {
    pub pools: Vec<Bytes>,
    pub states: Vec<Bytes>,
}

/// A step's own memory: its planned arena and its inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub arena: Bytes,
    pub io: HostIo,
}

impl Memory {
    /// Zeroed memory for `graph` laid out by `plan`.
    #[must_use]
    pub fn new(graph: &Graph, plan: &Plan) -> Self {
        Self { arena: Bytes::zeroed(plan.arena_bytes), io: HostIo::new(graph) }
    }
}

/// The inputs and outputs are what most callers are after.
impl std::ops::Deref for Memory {
    type Target = HostIo;
    fn deref(&self) -> &HostIo {
        &self.io
    }
}

impl std::ops::DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut HostIo {
        &mut self.io
    }
}

/// Why a node's operands cannot be handed out. Each of these means that a graph or plan is wrong, not its inputs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OperandError {
    #[error("{op}: writes buffer {buffer}, which it also reads or writes elsewhere")]
    Overlap { op: &'static str, buffer: String },
    #[error("{op}: buffer {buffer} is not declared or was taken before")]
    Undeclared { op: &'static str, buffer: u32 },
    #[error("{op}: buffer {buffer} has no place in the plan")]
    Unplanned { op: &'static str, buffer: String },
}

enum Slot<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
}

/// The operands of one node: every declared buffer, readable or writable as declared, and nothing else. A buffer that a
/// node both reads and writes (the settled and tail parts of a pool or state) is handed out once, writable.
pub struct Operands<'a> {
    op: &'static str,
    slots: Vec<(BufferId, Slot<'a>)>,
}

impl std::fmt::Debug for Operands<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operands").field("op", &self.op).field("buffers", &self.slots.len()).finish()
    }
}

impl<'a> Operands<'a> {
    /// Splits the memory into what `node` declared. Weights are not among the operands: executors hold them by id.
    ///
    /// # Errors
    /// [`OperandError`] if a written buffer overlaps another operand, or has no place.
    pub fn new(
        graph: &Graph,
        plan: &Plan,
        node: &Node,
        memory: &'a mut Memory,
        resident: &'a mut Resident,
    ) -> Result<Self, OperandError> {
        let op = node.op.name();
        let mut wanted = declared(node);
        let mut slots = Vec::with_capacity(wanted.len());
        let mut arena: Vec<(usize, usize, BufferId, Mode)> = Vec::new();
        wanted.retain(|&(id, mode)| {
            let buffer = graph.buffer(id);
            match buffer.class {
                Class::Weight(_) => false,
                Class::Transient => {
                    if let Some(start) = plan.offsets[id.0 as usize] {
                        arena.push((start, buffer.bytes, id, mode));
                    }
                    plan.offsets[id.0 as usize].is_none()
                }
                _ => true,
            }
        });
        if let Some((id, _)) = wanted.iter().find(|(id, _)| graph.buffer(*id).class == Class::Transient) {
            return Err(OperandError::Unplanned { op, buffer: graph.buffer(*id).name.clone() });
        }
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let (mut pools, mut states) = (Vec::new(), Vec::new());
        for (id, mode) in wanted {
            match (graph.buffer(id).class, memory.io.place(id)) {
                (Class::Pool(pool), _) => pools.push((pool.0, id, mode)),
                (Class::State(state), _) => states.push((state.0, id, mode)),
                (_, Some(Place::Input(at))) => inputs.push((at.start, at.len(), id, mode)),
                (_, Some(Place::Output(at))) => outputs.push((at.start, at.len(), id, mode)),
                _ => {}
            }
        }
        let (input_block, output_block) = memory.io.blocks();
        for (block, wanted) in
            [(&mut memory.arena[..], arena), (input_block, inputs), (output_block, outputs)]
        {
            split(block, wanted, &mut slots)
                .map_err(|id| OperandError::Overlap { op, buffer: graph.buffer(id).name.clone() })?;
        }
        pick(&mut resident.pools, pools, &mut slots);
        pick(&mut resident.states, states, &mut slots);
        Ok(Self { op, slots })
    }

    /// A declared read, as elements. May be asked for more than once.
    ///
    /// # Errors
    /// [`OperandError::Undeclared`].
    pub fn read<E: Pod>(&self, value: &Value) -> Result<&'a [E], OperandError> {
        Ok(bytemuck::cast_slice(&self.bytes(value.buffer)?[..value.bytes()]))
    }

    /// A declared read of a whole buffer (a pool).
    ///
    /// # Errors
    /// [`OperandError::Undeclared`].
    pub fn bytes(&self, buffer: BufferId) -> Result<&'a [u8], OperandError> {
        self.slots
            .iter()
            .find_map(|(id, slot)| match slot {
                Slot::Read(bytes) if *id == buffer => Some(*bytes),
                _ => None,
            })
            .ok_or(OperandError::Undeclared { op: self.op, buffer: buffer.0 })
    }

    /// A declared write, as elements; taken once.
    ///
    /// # Errors
    /// [`OperandError::Undeclared`].
    pub fn write<E: Pod>(&mut self, value: &Value) -> Result<&'a mut [E], OperandError> {
        let bytes = self.bytes_mut(value.buffer)?;
        Ok(bytemuck::cast_slice_mut(&mut bytes[..value.bytes()]))
    }

    /// A declared write of a whole buffer (a pool or state); taken once.
    ///
    /// # Errors
    /// [`OperandError::Undeclared`].
    pub fn bytes_mut(&mut self, buffer: BufferId) -> Result<&'a mut [u8], OperandError> {
        let at = self.slots.iter().position(|(id, slot)| *id == buffer && matches!(slot, Slot::Write(_)));
        match at.map(|i| self.slots.swap_remove(i).1) {
            Some(Slot::Write(bytes)) => Ok(bytes),
            _ => Err(OperandError::Undeclared { op: self.op, buffer: buffer.0 }),
        }
    }
}

fn slot(bytes: &mut [u8], mode: Mode) -> Slot<'_> {
    match mode {
        Mode::Read => Slot::Read(bytes),
        Mode::Write => Slot::Write(bytes),
    }
}

/// Lends the wanted elements of `all`, each by its index; one that is not there is left out, and found to be undeclared.
fn pick<'a>(
    all: &'a mut [Bytes],
    mut wanted: Vec<(u32, BufferId, Mode)>,
    slots: &mut Vec<(BufferId, Slot<'a>)>,
) {
    wanted.sort_unstable_by_key(|w| w.0);
    let (mut rest, mut base) = (all, 0);
    for (index, id, mode) in wanted {
        let Some(skip) = (index as usize).checked_sub(base) else { continue };
        let Some((bytes, tail)) =
            std::mem::take(&mut rest).get_mut(skip..).and_then(<[Bytes]>::split_first_mut)
        else {
            return;
        };
        slots.push((id, slot(bytes, mode)));
        (rest, base) = (tail, index as usize + 1);
    }
}

/// Each buffer of a node once; written wins over read.
fn declared(node: &Node) -> Vec<(BufferId, Mode)> {
    let mut all: Vec<(BufferId, Mode)> = Vec::new();
    for access in node.op.regions() {
        match all.iter_mut().find(|(id, _)| *id == access.region.buffer) {
            Some(known) if access.mode == Mode::Write => known.1 = Mode::Write,
            Some(_) => {}
            None => all.push((access.region.buffer, access.mode)),
        }
    }
    all
}

/// Cuts a block at the buffers. Reads may share bytes with reads; a write that overlaps anything is the error.
fn split<'a>(
    block: &'a mut [u8],
    mut wanted: Vec<(usize, usize, BufferId, Mode)>,
    slots: &mut Vec<(BufferId, Slot<'a>)>,
) -> Result<(), BufferId> {
    wanted.sort_by_key(|&(start, bytes, ..)| (start, bytes));
    let (mut rest, mut base) = (block, 0usize);
    let mut i = 0;
    while i < wanted.len() {
        let (start, mut end) = (wanted[i].0, wanted[i].0 + wanted[i].1);
        let mut next = i + 1;
        while next < wanted.len() && wanted[next].0 < end {
            end = end.max(wanted[next].0 + wanted[next].1);
            next += 1;
        }
        let group = &wanted[i..next];
        let (chunk, tail) = std::mem::take(&mut rest).split_at_mut(end - base);
        let chunk = &mut chunk[start - base..];
        if let [(_, _, id, mode)] = group {
            slots.push((*id, slot(chunk, *mode)));
        } else if let Some((_, _, id, _)) = group.iter().find(|(.., mode)| *mode == Mode::Write) {
            return Err(*id);
        } else {
            let chunk: &'a [u8] = chunk;
            slots.extend(
                group.iter().map(|&(s, n, id, _)| (id, Slot::Read(&chunk[s - start..s - start + n]))),
            );
        }
        (rest, base, i) = (tail, end, next);
    }
    Ok(())
}
