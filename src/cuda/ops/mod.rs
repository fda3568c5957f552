//! How each operation is launched: one module per op, as in `src/ops`. Each checks every operand against the op's
//! dimensions and the kernel's limits, and gives the launch as data.

mod attention;
mod compress;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_select;
mod index_store;
mod linear;
mod query;
mod rmsnorm;
mod rope_store;
mod router;
mod sample;
mod topk;

use super::bindings::Bound;
use super::{Bindings, CudaError, Launch};
use crate::format::index_row::IndexFormat;
use crate::format::kv_row::KvFormat;
use crate::ops::Op;

/// Which of the two index-logits kernels runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexReader {
    /// One thread a row: the readable one.
    Simple,
    /// Matrix instructions.
    #[default]
    Fast,
}

/// Choices that change no result beyond the order of sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub index_reader: IndexReader,
}

/// The launch of one node.
///
/// # Errors
/// [`CudaError`]: an operand that does not fit the op's dimensions, or what the GPU does not support.
pub fn launch(op: &Op, bindings: &Bindings<'_>, options: Options) -> Result<Launch, CudaError> {
    let b = &Bound { op: op.name(), all: bindings };
    match op {
        Op::Embed(op) => embed::launch(op, b),
        Op::HyperPre(op) => hyper::pre(op, b),
        Op::HyperPost(op) => hyper::post(op, b),
        Op::HyperHead(op) => hyper::head(op, b),
        Op::RmsNorm(op) => rmsnorm::launch(op, b),
        Op::Linear(op) => linear::launch(op, b),
        Op::Query(op) => query::launch(op, b),
        Op::RopeStore(op) => rope_store::launch(op, b),
        Op::Compress(op) => compress::launch(op, b),
        Op::IndexStore(op) => index_store::launch(op, b),
        Op::IndexQuery(op) => index_query::launch(op, b),
        Op::IndexLogits(op) => index_logits::launch(op, b, options.index_reader),
        Op::TopK(op) => topk::launch(op, b),
        Op::IndexSelect(op) => index_select::launch(op, b, options.index_reader),
        Op::Attention(op) => attention::launch(op, b),
        Op::Router(op) => router::launch(op, b),
        Op::ExpertsUp(op) => experts::up(op, b),
        Op::ExpertsDown(op) => experts::down(op, b),
        Op::Sample(op) => sample::launch(op, b),
    }
}

/// A key/value format as the kernels number it.
fn kv_format(b: &Bound<'_>, format: KvFormat) -> Result<i32, CudaError> {
    match format {
        KvFormat::Fp8 => Ok(0),
        KvFormat::Bf16 => Ok(1),
        KvFormat::F32 => Err(CudaError::Unsupported { op: b.op, what: "an f32 key/value pool" }),
    }
}

/// An index format as the kernels number it.
fn index_format(b: &Bound<'_>, format: IndexFormat) -> Result<i32, CudaError> {
    match format {
        IndexFormat::Bf16 => Ok(1),
        IndexFormat::Fp8 => Ok(2),
        IndexFormat::Fp4 => Ok(3),
        IndexFormat::F32 => Err(CudaError::Unsupported { op: b.op, what: "the f32 index format" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::DeviceWeights;
    use crate::ops::{BufferId, Dtype, RmsNorm, Value};
    use crate::step::{Buffer, Class, Graph, WeightId};

    fn norm(len: usize, dtype: Dtype) -> (Graph, Op) {
        let value = |id, len| Value { buffer: BufferId(id), dtype, len };
        let buffer =
            |name: &str, class, bytes| Buffer { name: name.into(), class, dtype, shape: vec![], bytes };
        let weight = Class::Weight(WeightId(0));
        let graph = Graph {
            buffers: vec![
                buffer("x", Class::Transient, 64),
                buffer("weight", weight, 16),
                buffer("out", Class::Transient, 64),
            ],
            ..Graph::default()
        };
        let op = RmsNorm {
            x: value(0, len),
            weight: value(1, 8),
            out: value(2, 32),
            rows: 4,
            width: 8,
            eps: 1e-6,
        };
        (graph, Op::RmsNorm(op))
    }

    fn refusal(len: usize, dtype: Dtype, bytes: usize) -> String {
        let (graph, op) = norm(len, dtype);
        let weights = DeviceWeights::default();
        let buffers = vec![Some((256, bytes)), None, Some((512, 64))];
        let (weights, shared_memory) = (&weights, 99 << 10);
        let bindings =
            Bindings { graph: &graph, buffers, weights, multiprocessors: 1, shared_memory, displaced: false };
        launch(&op, &bindings, Options::default()).unwrap_err().to_string()
    }

    #[test]
    fn operands_that_do_not_fit_are_refused_in_words() {
        assert_eq!(refusal(31, Dtype::Bf16, 64), "rmsnorm: x has 31 elements, expected 32");
        assert_eq!(refusal(32, Dtype::I32, 128), "rmsnorm: x is I32, expected Bf16");
        assert_eq!(refusal(32, Dtype::F32, 128), "rmsnorm: an f32 activation is not supported on the GPU");
        assert_eq!(refusal(32, Dtype::Bf16, 63), "rmsnorm: x has 63 elements, expected 64");
        assert_eq!(refusal(32, Dtype::Bf16, 64), "rmsnorm: weight has no memory on the device");
    }
}
