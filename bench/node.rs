//! One operation alone, over its own memory: a graph of one node.

use criterion::Bencher;
use flashlane::checkpoint::{Matrix, Part, WeightFormat};
use flashlane::cpu::{Weights, run};
use flashlane::format::{fp8_block, nvfp4};
use flashlane::ops::{BufferId, Dtype, Op, Tokens, Value};
use flashlane::step::{
    Buffer, Bytes, Class, Graph, LaneId, LaneInfo, Memory, Node, Operands, Plan, PoolId, Resident, WeightId,
};
use half::bf16;

/// Deterministic numbers in (-1, 1).
pub(crate) fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            (s >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// A node and what its buffers hold.
#[derive(Debug)]
pub(crate) struct Bench {
    graph: Graph,
    weights: Weights,
    resident: Resident,
    contents: Vec<Vec<u8>>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let lane = LaneInfo { name: "main".into(), parent: None };
        let graph = Graph { lanes: vec![lane], ..Graph::default() };
        Self { graph, weights: Weights::new(), resident: Resident::default(), contents: Vec::new() }
    }

    fn buffer(&mut self, class: Class, dtype: Dtype, bytes: usize) -> BufferId {
        let id = BufferId(self.graph.buffers.len() as u32);
        self.graph.buffers.push(Buffer { name: "operand".into(), class, dtype, shape: vec![bytes], bytes });
        self.contents.push(Vec::new());
        id
    }

    fn given(&mut self, dtype: Dtype, bytes: Vec<u8>) -> Value {
        let len = bytes.len() / dtype.size();
        let buffer = self.buffer(Class::Transient, dtype, bytes.len());
        self.contents[buffer.0 as usize] = bytes;
        Value { buffer, dtype, len }
    }

    pub(crate) fn activation(&mut self, values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        self.given(Dtype::Bf16, bytes)
    }

    pub(crate) fn floats(&mut self, values: &[f32]) -> Value {
        self.given(Dtype::F32, bytemuck::cast_slice(values).to_vec())
    }

    pub(crate) fn ints(&mut self, values: &[i32]) -> Value {
        self.given(Dtype::I32, bytemuck::cast_slice(values).to_vec())
    }

    pub(crate) fn tokens(&mut self, per_request: usize, positions: &[i32]) -> Tokens {
        Tokens { requests: positions.len() / per_request, per_request, position: self.ints(positions) }
    }

    pub(crate) fn out(&mut self, len: usize) -> Value {
        self.given(Dtype::Bf16, vec![0; 2 * len])
    }

    fn weight_id(&mut self) -> (WeightId, Value) {
        let id = WeightId(self.graph.buffers.len() as u32);
        (id, Value { buffer: self.buffer(Class::Weight(id), Dtype::U8, 0), dtype: Dtype::U8, len: 0 })
    }

    pub(crate) fn vector(&mut self, values: Vec<f32>) -> Value {
        let (id, value) = self.weight_id();
        self.weights.insert_f32(id, values);
        value
    }

    pub(crate) fn matrix(&mut self, format: WeightFormat, rows: usize, cols: usize) -> Value {
        let values = noise(9, rows * cols);
        let (codes, scales, scale2) = match format {
            WeightFormat::Fp8Block => {
                let (codes, scales) = fp8_block::quantize(&values, cols).expect("whole rows");
                (codes, scales, 1.0)
            }
            WeightFormat::Nvfp4 => {
                let q = nvfp4::quantize(&values, nvfp4::scale2_for(1.0)).expect("whole blocks");
                (q.codes, q.scales, q.scale2)
            }
            _ => (values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(), Vec::new(), 1.0),
        };
        let part = Part { first_row: 0, rows, codes: codes.into(), scales: scales.into(), scale2 };
        let (id, value) = self.weight_id();
        self.weights.insert(id, Matrix { name: "weight".into(), rows, cols, format, parts: vec![part] });
        value
    }

    pub(crate) fn pool(&mut self, bytes: &[u8]) -> BufferId {
        let pool = PoolId(self.resident.pools.len() as u32);
        let mut owned = Bytes::zeroed(bytes.len());
        owned.copy_from_slice(bytes);
        self.resident.pools.push(owned);
        self.buffer(Class::Pool(pool), Dtype::U8, bytes.len())
    }

    /// Times the operation.
    pub(crate) fn iter(mut self, op: Op, b: &mut Bencher<'_>) {
        let node = Node { op, lane: LaneId(0), scope: "bench".into(), waits: true };
        let plan = Plan::unshared(&self.graph);
        let mut memory = Memory::new(&self.graph, &plan);
        for (content, offset) in self.contents.iter().zip(&plan.offsets) {
            if let Some(start) = offset {
                memory.arena[*start..start + content.len()].copy_from_slice(content);
            }
        }
        let (graph, weights, resident) = (&self.graph, &self.weights, &mut self.resident);
        rayon::scope(|_| {
            b.iter(|| {
                let operands = Operands::new(graph, &plan, &node, &mut memory, resident).expect("operands");
                run(graph, &node, operands, weights).expect("a run");
            });
        });
    }
}
