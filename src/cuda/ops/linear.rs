//! Launch of `linear`.

use std::ffi::c_void;

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{self, LinearParams, Weight};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Epilogue, Linear};

/// Segments of K, and the warps or the blocks of a cluster that each have one.
const SEGMENTS: usize = 4;
/// Elements of K that are staged at once.
const ROUND: usize = 128;

/// Shared memory of a block on architectures that have wgmma.
const LARGE: usize = 227 << 10;

/// A kernel, the activation rows and the weight rows of one of its blocks, its threads and its dynamic shared memory.
struct Shape {
    kernel: Kernel,
    rows: usize,
    weight_rows: usize,
    /// Blocks that share the segments of K.
    blocks: usize,
    threads: u32,
    shared: usize,
}

impl Shape {
    /// By the number of rows and of output columns; a depth of no whole steps always goes to the kernel for few rows.
    fn of(op: &Linear, weight: &Weight, b: &Bound<'_>) -> Self {
        let format = weight.format as u32;
        let step = match format {
            ffi::kWeightBf16 => 64,
            ffi::kWeightFp8Block => 128,
            _ => 256,
        };
        if op.rows <= 8 || !(op.cols_in / op.groups).is_multiple_of(step) {
            let (kernel, shared) = (Kernel::Linear8, 4 * 16 * (8 * 128 + 64 + 8 * 16 + 16));
            return Self { kernel, rows: 8, weight_rows: 16, blocks: 1, threads: 128, shared };
        }
        let limit = b.all.shared_memory;
        let columns = match op.rows {
            ..=32 => 32,
            65.. if limit >= LARGE => 128,
            _ => 64,
        };
        let shape = |kernel, rows, blocks| {
            let shared = many(rows, 128, weight, limit);
            Self { kernel, rows, weight_rows: 128, blocks, threads: 256, shared }
        };
        // Blocks that have all of K each, where they fill the GPU: sums in fp8 need too many registers for 128 rows.
        let whole = if columns == 128 && format != ffi::kWeightFp8Block {
            shape(Kernel::Linear128Alone, 128, 1)
        } else {
            shape(Kernel::Linear64Alone, 64, 1)
        };
        if columns > 32 && 4 * whole.count(op) >= 3 * b.all.multiprocessors {
            return whole;
        }
        let kernel = match columns {
            32 => Kernel::Linear32,
            64 => Kernel::Linear64,
            _ => Kernel::Linear128,
        };
        shape(kernel, columns, SEGMENTS)
    }

    /// Blocks along the output columns.
    fn across(&self, op: &Linear) -> usize {
        let columns = self.weight_rows / if matches!(op.epilogue, Epilogue::SwiGlu { .. }) { 2 } else { 1 };
        self.blocks * op.groups * (op.cols_out() / op.groups).div_ceil(columns)
    }

    fn count(&self, op: &Linear) -> usize {
        self.across(op) * op.rows.div_ceil(self.rows)
    }
}

/// Shared memory of the kernels for many rows: two rounds of activations and the ring of weights; then the sums.
fn many(columns: usize, weight_rows: usize, weight: &Weight, limit: usize) -> usize {
    let (bytes, stages) = match weight.format as u32 {
        ffi::kWeightBf16 => (2 * ROUND, [2, 4]),
        ffi::kWeightFp8Block => (ROUND + 4, [3, 6]),
        ffi::kWeightNvfp4 => (ROUND / 2 + 8, [6, 8]),
        _ => (ROUND / 2 + 4, [6, 8]),
    };
    // As deep as the kernel's own architecture makes it: sm_90a has the larger memory.
    let stages = stages[usize::from(limit >= LARGE)];
    let activations = 2 * ROUND / 8 * (columns * 16 + 16);
    let sums = 4 * columns * (weight_rows + 4);
    sums.max(activations + stages * weight_rows * bytes)
}

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for LinearParams {}

pub(super) fn launch(op: &Linear, b: &Bound<'_>) -> Result<Launch, CudaError> {
    let depth = op.cols_in / op.groups;
    let (swiglu, limit) = match op.epilogue {
        Epilogue::None => (false, 0.0),
        Epilogue::SwiGlu { limit } => (true, limit),
    };
    if swiglu && op.groups != 1 {
        return Err(CudaError::Unsupported { op: b.op, what: "SwiGLU over groups" });
    }
    let dtype = if op.out.dtype == Dtype::F32 { Dtype::F32 } else { Dtype::Bf16 };
    let params = LinearParams {
        x: b.value("x", &op.x, Dtype::Bf16, op.rows * op.cols_in)?,
        weight: b.matrix("weight", &op.weight, 1, op.weight_rows, depth)?,
        out: b.value_mut::<c_void>("out", &op.out, dtype, op.rows * op.cols_out())?,
        rows: b.dim("rows", op.rows)?,
        depth: b.dim("depth", depth)?,
        weight_rows: b.dim("weight rows", op.weight_rows)?,
        groups: b.dim("groups", op.groups)?,
        out_f32: i32::from(dtype == Dtype::F32),
        swiglu: i32::from(swiglu),
        limit,
        pad: 0,
    };
    let shape = Shape::of(op, &params.weight, b);
    let grid = [shape.across(op), op.rows.div_ceil(shape.rows), 1];
    Ok(Launch::new(shape.kernel, grid, shape.threads, shape.shared, &params))
}
