//! A step under construction, and its time.

use std::sync::Arc;

use flashlane::cuda::{
    Backend, CudaError, DeviceBuffer, DeviceResident, DeviceStep, DeviceWeight, DeviceWeights, Executor,
    IndexReader, MatrixFormat, Options,
};
use flashlane::ops::{BufferId, Dtype, Op, Tokens, Value};
use flashlane::step::{
    Buffer, Bytes, Class, Graph, LaneId, LaneInfo, Memory, Node, Plan, PoolId, Resident, StateId, WeightId,
};

use super::REPEATS;

/// A step under construction, with its memory.
pub(super) struct Bench {
    backend: Arc<dyn Backend>,
    graph: Graph,
    content: Vec<Vec<u8>>,
    resident: Resident,
    weights: DeviceWeights,
    pub(super) random: Vec<u8>,
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

impl Bench {
    pub(super) fn new(backend: &Arc<dyn Backend>) -> Self {
        let lane = LaneInfo { name: "main".into(), parent: None };
        Self {
            backend: Arc::clone(backend),
            graph: Graph { lanes: vec![lane], ..Graph::default() },
            content: Vec::new(),
            resident: Resident::default(),
            weights: DeviceWeights::default(),
            random: noise(1 << 24),
        }
    }

    fn buffer(&mut self, class: Class, dtype: Dtype, bytes: usize, content: Vec<u8>) -> BufferId {
        let id = BufferId(self.graph.buffers.len() as u32);
        self.graph.buffers.push(Buffer { name: format!("{}", id.0), class, dtype, shape: vec![], bytes });
        self.content.push(content);
        id
    }

    pub(super) fn value(&mut self, dtype: Dtype, len: usize, content: Vec<u8>) -> Value {
        let buffer = self.buffer(Class::Transient, dtype, len * dtype.size(), content);
        Value { buffer, dtype, len }
    }

    pub(super) fn out(&mut self, dtype: Dtype, len: usize) -> Value {
        self.value(dtype, len, Vec::new())
    }

    /// Numbers in `[-1, 1)`.
    pub(super) fn real(&mut self, dtype: Dtype, len: usize) -> Value {
        let random = |i: usize| f32::from(self.random[i % self.random.len()] as i8) / 128.0;
        let floats = (0..len).map(random);
        let bytes = match dtype {
            Dtype::Bf16 => floats.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            _ => floats.zip(0..).flat_map(|(v, i)| (v + (i % 9973) as f32 * 1e-6).to_le_bytes()).collect(),
        };
        self.value(dtype, len, bytes)
    }

    pub(super) fn ints(&mut self, data: &[i32]) -> Value {
        self.value(Dtype::I32, data.len(), bytemuck::cast_slice(data).to_vec())
    }

    pub(super) fn longs(&mut self, data: &[i64]) -> Value {
        self.value(Dtype::I64, data.len(), bytemuck::cast_slice(data).to_vec())
    }

    pub(super) fn tokens(&mut self, rows: usize, position: usize) -> Tokens {
        let position = self.ints(&vec![position as i32; rows]);
        Tokens { requests: rows, per_request: 1, position }
    }

    pub(super) fn pool(&mut self, bytes: Vec<u8>) -> BufferId {
        let id = PoolId(self.resident.pools.len() as u32);
        let mut owned = Bytes::zeroed(bytes.len());
        owned.copy_from_slice(&bytes);
        self.resident.pools.push(owned);
        self.buffer(Class::Pool(id), Dtype::U8, bytes.len(), Vec::new())
    }

    pub(super) fn state(&mut self, floats: usize) -> BufferId {
        let id = StateId(self.resident.states.len() as u32);
        self.resident.states.push(Bytes::zeroed(4 * floats));
        self.buffer(Class::State(id), Dtype::F32, 4 * floats, Vec::new())
    }

    /// Device memory filled with `pattern` over and over.
    fn filled(&self, bytes: usize, pattern: &[u8]) -> Result<DeviceBuffer, CudaError> {
        let buffer = DeviceBuffer::new(&self.backend, bytes)?;
        let mut at = 0;
        while at < bytes {
            let part = pattern.len().min(bytes - at);
            buffer.upload(at, &pattern[..part])?;
            at += part;
        }
        Ok(buffer)
    }

    fn weight(&mut self, weight: DeviceWeight) -> Value {
        let id = WeightId(self.graph.buffers.len() as u32);
        self.weights.insert(id, weight);
        let buffer = self.buffer(Class::Weight(id), Dtype::U8, 0, Vec::new());
        Value { buffer, dtype: Dtype::U8, len: 0 }
    }

    pub(super) fn floats(&mut self, len: usize) -> Result<Value, CudaError> {
        let data: Vec<f32> =
            (0..len).map(|i| f32::from(self.random[i % self.random.len()] as i8) / 128.0).collect();
        let weight = DeviceWeight::plain(&self.backend, MatrixFormat::F32, bytemuck::cast_slice(&data))?;
        Ok(self.weight(weight))
    }

    pub(super) fn matrix(
        &mut self,
        format: MatrixFormat,
        stack: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Value, CudaError> {
        let (codes, scales) = format.bytes(rows, cols);
        let one = |f: f32| f.to_le_bytes().repeat(1 << 18);
        let scale = match format {
            MatrixFormat::Fp8Block => one(0.01),
            MatrixFormat::Nvfp4 => vec![0x38; 1 << 20],
            _ => vec![127; 1 << 20],
        };
        // e4m3 without its NaN codes, bf16 of moderate size, any e2m1.
        let pattern: Vec<u8> = match format {
            MatrixFormat::Fp8Block => self.random.iter().map(|b| b & 0xbf).collect(),
            MatrixFormat::Bf16 => self.random.chunks(2).flat_map(|p| [p[0], p[1] & 0x80 | 0x3c]).collect(),
            _ => self.random.clone(),
        };
        let weight = DeviceWeight {
            format,
            codes: self.filled(stack * codes, &pattern)?,
            scales: if scales > 0 { Some(self.filled(stack * scales, &scale)?) } else { None },
            global: Some(self.filled(4 * stack, &one(1.0))?),
        };
        Ok(self.weight(weight))
    }

    pub(super) fn node(&mut self, op: Op) {
        self.graph.nodes.push(Node { op, lane: LaneId(0), scope: "bench".into(), waits: true });
    }

    /// The median time of a node, in microseconds.
    pub(super) fn time(self, reader: IndexReader) -> Result<f32, CudaError> {
        let plan = Plan::unshared(&self.graph);
        let mut memory = Memory::new(&self.graph, &plan);
        for (offset, content) in plan.offsets.iter().zip(&self.content) {
            if let Some(start) = offset {
                memory.arena[*start..*start + content.len()].copy_from_slice(content);
            }
        }
        let step = DeviceStep::upload(&self.backend, &self.graph, &memory)?;
        let resident = DeviceResident::upload(&self.backend, &self.resident)?;
        let options = Options { index_reader: reader };
        let nodes = self.graph.nodes.len() as f32;
        let executor = Executor { backend: self.backend, weights: self.weights, options };
        let mut all = executor.time(&self.graph, &plan, (&step, &resident), true, REPEATS)?;
        all.sort_by(f32::total_cmp);
        Ok(all[all.len() / 2] / nodes)
    }
}
