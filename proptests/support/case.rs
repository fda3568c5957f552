//! A case: one node, what its operands hold, which of their bytes it may read and which it must write.

use std::ops::Range;

use flashlane::checkpoint::{Matrix, Part, WeightFormat};
use flashlane::format::{fp8_block, mxfp4, nvfp4};
use flashlane::ops::{BufferId, Dtype, Op, ROPE_DIM, Tokens, Value};
use flashlane::step::{
    ALIGN, Buffer, Class, Graph, LaneId, LaneInfo, Memory, Node, Plan, PoolId, Resident, StateId, WeightId,
};
use half::bf16;

use super::pages::rope_table;

/// The elements of a weight as a checkpoint may store them.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    F32(Vec<f32>),
    /// Values that are exact in bf16.
    Bf16(Vec<f32>),
    Fp8 {
        codes: Vec<u8>,
        scales: Vec<u8>,
    },
    NvFp4 {
        codes: Vec<u8>,
        scales: Vec<u8>,
        scale2: f32,
    },
    MxFp4 {
        codes: Vec<u8>,
        scales: Vec<u8>,
    },
    Table(Vec<i32>),
}

/// A weight `[rows, cols]` as a test states it. Executors make of it what they hold.
#[derive(Clone, Debug)]
pub(crate) struct TestWeight {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stored: Stored,
}

impl TestWeight {
    /// The elements, exactly; `None` for a table.
    pub(crate) fn values(&self) -> Option<Vec<f32>> {
        let mut out = vec![0.0; self.rows * self.cols];
        match &self.stored {
            Stored::F32(data) | Stored::Bf16(data) => out.copy_from_slice(data),
            Stored::Fp8 { codes, scales } => {
                let scales = fp8_block::BlockScales::Ue8m0(scales);
                fp8_block::dequantize(codes, scales, self.cols, &mut out).unwrap();
            }
            Stored::NvFp4 { codes, scales, scale2 } => {
                nvfp4::dequantize(codes, scales, *scale2, &mut out).unwrap();
            }
            Stored::MxFp4 { codes, scales } => mxfp4::dequantize(codes, scales, &mut out).unwrap(),
            Stored::Table(_) => return None,
        }
        Some(out)
    }

    /// The weight as a checkpoint holds it; `None` for what checkpoints decode.
    pub(crate) fn matrix(&self) -> Option<Matrix> {
        let (format, codes, scales, scale2) = match self.stored.clone() {
            Stored::F32(_) | Stored::Table(_) => return None,
            Stored::Bf16(data) => {
                let codes = data.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
                (WeightFormat::Bf16, codes, Vec::new(), 1.0)
            }
            Stored::Fp8 { codes, scales } => (WeightFormat::Fp8Block, codes, scales, 1.0),
            Stored::NvFp4 { codes, scales, scale2 } => (WeightFormat::Nvfp4, codes, scales, scale2),
            Stored::MxFp4 { codes, scales } => (WeightFormat::Mxfp4, codes, scales, 1.0),
        };
        let (rows, cols) = (self.rows, self.cols);
        let part = Part { first_row: 0, rows, codes: codes.into(), scales: scales.into(), scale2 };
        Some(Matrix { name: "test".into(), rows, cols, format, parts: vec![part] })
    }

    fn bytes(&self) -> usize {
        match &self.stored {
            Stored::F32(data) => 4 * data.len(),
            Stored::Bf16(data) => 2 * data.len(),
            Stored::Fp8 { codes, scales } | Stored::MxFp4 { codes, scales } => codes.len() + scales.len(),
            Stored::NvFp4 { codes, scales, .. } => codes.len() + scales.len() + 4,
            Stored::Table(data) => 4 * data.len(),
        }
    }
}

/// A buffer's bytes before the run, those of them that must not matter, and those that must be written.
#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    unread: Vec<Range<usize>>,
    written: Vec<Range<usize>>,
}

/// Bytes of poison after every buffer, so that a read past its end shows and a write past its end is seen.
const GUARD: usize = 4 * ALIGN;

/// One node and its memory.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    pub(crate) weights: Vec<(WeightId, TestWeight)>,
    contents: Vec<Content>,
    pools: u32,
    states: u32,
}

impl Case {
    pub(crate) fn new() -> Self {
        let lane = LaneInfo { name: "main".into(), parent: None };
        Self {
            graph: Graph { lanes: vec![lane], ..Graph::default() },
            plan: Plan { offsets: Vec::new(), arena_bytes: GUARD },
            weights: Vec::new(),
            contents: Vec::new(),
            pools: 0,
            states: 0,
        }
    }

    fn buffer(&mut self, name: &str, class: Class, dtype: Dtype, shape: usize, content: Content) -> BufferId {
        let id = BufferId(u32::try_from(self.graph.buffers.len()).unwrap());
        let bytes = content.bytes.len();
        let offset = (class == Class::Transient).then_some(self.plan.arena_bytes);
        if offset.is_some() {
            self.plan.arena_bytes += bytes.next_multiple_of(ALIGN) + GUARD;
        }
        self.plan.offsets.push(offset);
        self.graph.buffers.push(Buffer { name: name.into(), class, dtype, shape: vec![shape], bytes });
        self.contents.push(content);
        id
    }

    fn value(&mut self, name: &str, dtype: Dtype, len: usize, content: Content) -> Value {
        Value { buffer: self.buffer(name, Class::Transient, dtype, len, content), dtype, len }
    }

    fn given<E: bytemuck::NoUninit>(&mut self, name: &str, dtype: Dtype, data: &[E]) -> Value {
        let bytes = bytemuck::cast_slice(data).to_vec();
        self.value(name, dtype, data.len(), Content { bytes, ..Content::default() })
    }

    /// An activation or f32 operand, rounded if it is bf16.
    pub(crate) fn real(&mut self, name: &str, dtype: Dtype, data: &[f32]) -> Value {
        match dtype {
            Dtype::Bf16 => {
                let rounded: Vec<bf16> = data.iter().map(|&v| bf16::from_f32(v)).collect();
                self.given(name, dtype, &rounded)
            }
            _ => self.given(name, Dtype::F32, data),
        }
    }

    pub(crate) fn ints(&mut self, name: &str, data: &[i32]) -> Value {
        self.given(name, Dtype::I32, data)
    }

    pub(crate) fn longs(&mut self, name: &str, data: &[i64]) -> Value {
        self.given(name, Dtype::I64, data)
    }

    pub(crate) fn seeds(&mut self, name: &str, data: &[u64]) -> Value {
        self.given(name, Dtype::U64, data)
    }

    pub(crate) fn codes(&mut self, name: &str, data: &[u8]) -> Value {
        self.given(name, Dtype::U8, data)
    }

    /// The rows of the step: `positions.len() / per_request` requests.
    pub(crate) fn tokens(&mut self, per_request: usize, positions: &[i32]) -> Tokens {
        let position = self.ints("position", positions);
        Tokens { requests: positions.len() / per_request, per_request, position }
    }

    /// An output that is written whole.
    pub(crate) fn out(&mut self, name: &str, dtype: Dtype, len: usize) -> Value {
        let value = self.partial(name, dtype, len);
        self.writes(value.buffer, 0..value.bytes());
        value
    }

    /// An output of which nothing is written but what [`writes`](Self::writes) says.
    pub(crate) fn partial(&mut self, name: &str, dtype: Dtype, len: usize) -> Value {
        let bytes = vec![0; len * dtype.size()];
        let whole = 0..bytes.len();
        self.value(name, dtype, len, Content { bytes, unread: vec![whole], written: Vec::new() })
    }

    /// A weight `[rows, cols]` in a storage format.
    pub(crate) fn weight(&mut self, name: &str, rows: usize, cols: usize, stored: Stored) -> Value {
        let id = WeightId(u32::try_from(self.weights.len()).unwrap());
        let weight = TestWeight { rows, cols, stored };
        let len = weight.bytes();
        self.weights.push((id, weight));
        let content = Content { bytes: vec![0; len], ..Content::default() };
        Value { buffer: self.buffer(name, Class::Weight(id), Dtype::U8, len, content), dtype: Dtype::U8, len }
    }

    /// A small f32 weight.
    pub(crate) fn vector(&mut self, name: &str, data: &[f32]) -> Value {
        self.weight(name, 1, data.len(), Stored::F32(data.to_vec()))
    }

    /// The rotation table of `positions` positions, by the plain frequencies.
    pub(crate) fn rope(&mut self, positions: usize) -> Value {
        self.weight("rope", positions, ROPE_DIM, Stored::F32(rope_table(positions)))
    }

    /// A pool with a guard behind its last page.
    pub(crate) fn pool(&mut self, name: &str, mut bytes: Vec<u8>) -> BufferId {
        let (used, class) = (bytes.len(), Class::Pool(PoolId(self.pools)));
        self.pools += 1;
        bytes.resize(used + GUARD, 0);
        let len = bytes.len();
        let id = self.buffer(name, class, Dtype::U8, len, Content { bytes, ..Content::default() });
        self.unread(id, used..len);
        id
    }

    /// A state buffer with a guard behind its last slot.
    pub(crate) fn state(&mut self, name: &str, slots: &[f32]) -> BufferId {
        let mut bytes: Vec<u8> = bytemuck::cast_slice(slots).to_vec();
        let (used, class) = (bytes.len(), Class::State(StateId(self.states)));
        self.states += 1;
        bytes.resize(used + GUARD, 0);
        let len = bytes.len();
        let id = self.buffer(name, class, Dtype::F32, len / 4, Content { bytes, ..Content::default() });
        self.unread(id, used..len);
        id
    }

    /// Declares bytes that the node has no business reading.
    pub(crate) fn unread(&mut self, buffer: BufferId, bytes: Range<usize>) {
        self.contents[buffer.0 as usize].unread.push(bytes);
    }

    /// Declares every byte of a buffer unreadable but the given ones.
    pub(crate) fn unread_except(&mut self, buffer: BufferId, readable: &[Range<usize>]) {
        let mut start = 0;
        let mut sorted = readable.to_vec();
        sorted.sort_by_key(|r| r.start);
        for range in sorted {
            self.unread(buffer, start..range.start.max(start));
            start = start.max(range.end);
        }
        let end = self.contents[buffer.0 as usize].bytes.len();
        self.unread(buffer, start..end);
    }

    /// As [`unread`](Self::unread), in elements of a value.
    pub(crate) fn unread_elements(&mut self, value: &Value, elements: Range<usize>) {
        let size = value.dtype.size();
        self.unread(value.buffer, elements.start * size..elements.end * size);
    }

    /// Declares bytes that the node writes, every one of them.
    pub(crate) fn writes(&mut self, buffer: BufferId, bytes: Range<usize>) {
        self.contents[buffer.0 as usize].written.push(bytes);
    }

    /// As [`writes`](Self::writes), in elements of a value.
    pub(crate) fn writes_elements(&mut self, value: &Value, elements: Range<usize>) {
        let size = value.dtype.size();
        self.writes(value.buffer, elements.start * size..elements.end * size);
    }

    /// Appends the node. Most cases have one.
    pub(crate) fn op(&mut self, op: Op) {
        self.graph.nodes.push(Node { op, lane: LaneId(0), scope: "case".into(), waits: true });
    }

    /// What a buffer holds before the run, poison apart.
    pub(crate) fn before(&self, buffer: BufferId, poison: u8) -> Vec<u8> {
        let mut bytes = vec![0; self.contents[buffer.0 as usize].bytes.len()];
        self.fill(buffer, poison, &mut bytes);
        bytes
    }

    fn fill(&self, buffer: BufferId, poison: u8, bytes: &mut [u8]) {
        let content = &self.contents[buffer.0 as usize];
        bytes.copy_from_slice(&content.bytes);
        for range in &content.unread {
            bytes[range.clone()].fill(poison);
        }
    }

    /// Memory before the run: every operand in place, `poison` wherever nothing may be read.
    pub(crate) fn memory(&self, poison: u8) -> (Memory, Resident) {
        let mut memory = Memory::new(&self.graph, &self.plan);
        memory.arena.fill(poison);
        let mut resident = Resident::default();
        for id in self.graph.buffer_ids() {
            let Buffer { class, bytes, .. } = *self.graph.buffer(id);
            let owned = || {
                let mut owned = flashlane::step::Bytes::zeroed(bytes);
                self.fill(id, poison, &mut owned);
                owned
            };
            match class {
                Class::Pool(_) => resident.pools.push(owned()),
                Class::State(_) => resident.states.push(owned()),
                Class::Transient => {
                    let start = self.plan.offsets[id.0 as usize].unwrap();
                    self.fill(id, poison, &mut memory.arena[start..start + bytes]);
                }
                _ => {}
            }
        }
        (memory, resident)
    }

    /// A buffer's bytes in memory, `None` for weights.
    pub(crate) fn bytes<'m>(
        &self,
        buffer: BufferId,
        memory: &'m Memory,
        resident: &'m Resident,
    ) -> Option<&'m [u8]> {
        let b = self.graph.buffer(buffer);
        match b.class {
            Class::Pool(id) => Some(&resident.pools[id.0 as usize]),
            Class::State(id) => Some(&resident.states[id.0 as usize]),
            Class::Transient => {
                let start = self.plan.offsets[buffer.0 as usize]?;
                Some(&memory.arena[start..start + b.bytes])
            }
            _ => None,
        }
    }

    /// Whether the node writes byte `at` of `buffer`, for every byte.
    pub(crate) fn written(&self, buffer: BufferId) -> Vec<bool> {
        let content = &self.contents[buffer.0 as usize];
        let mut mask = vec![false; content.bytes.len()];
        for range in &content.written {
            mask[range.clone()].fill(true);
        }
        mask
    }
}
