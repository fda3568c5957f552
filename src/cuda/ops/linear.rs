//! Launch of `linear`.

use std::ffi::c_void;

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{self, LinearParams, Weight};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Epilogue, Linear};

/// Elements of K that the kernels for many rows stage at once.
const ROUND: usize = 128;
/// Shared memory of a block on architectures that have wgmma.
const LARGE: usize = 227 << 10;

/// A kernel, the activation rows and the weight rows of one of its blocks, and its dynamic shared memory.
struct Shape {
    kernel: Kernel,
    rows: usize,
    weight_rows: usize,
    /// Blocks that share the segments of K.
    blocks: usize,
    stages: usize,
    buffers: usize,
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
            return Self { kernel, rows: 8, weight_rows: 16, blocks: 1, stages: 0, buffers: 0, shared };
        }
        let many = |kernel, rows, weight_rows, blocks| {
            let (stages, buffers, shared) = ring(rows, weight_rows, format, b.all.shared_memory);
            Self { kernel, rows, weight_rows, blocks, stages, buffers, shared }
        };
        // Blocks that have all of K each, or half of it, where they fill most of the GPU; as measured on an H200.
        let (whole, half) = (many(Kernel::Linear64Alone, 64, 128, 1), many(Kernel::Linear128, 128, 128, 2));
        let large = b.all.shared_memory >= LARGE;
        match op.rows {
            65.. if large && 9 * half.count(op) >= 4 * b.all.multiprocessors => half,
            _ if large && 4 * whole.count(op) >= 3 * b.all.multiprocessors => whole,
            33.. if large => many(Kernel::Linear64, 64, 64, 2),
            _ => many(Kernel::Linear32, 32, 64, 2),
        }
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

/// Stages of the ring of weights and rounds of activations of the kernels for many rows, and their shared memory.
fn ring(columns: usize, weight_rows: usize, format: u32, available: usize) -> (usize, usize, usize) {
    let row = match format {
        ffi::kWeightBf16 => 2 * ROUND,
        ffi::kWeightFp8Block => ROUND + 4,
        ffi::kWeightNvfp4 => ROUND / 2 + 8,
        _ => ROUND / 2 + 4,
    };
    let streams = if weight_rows == 64 { 2 } else { 1 };
    let (round, stage) = (ROUND / 8 * (columns * 16 + 16), weight_rows * row);
    let buffers = 2;
    let fixed = 512 + 512 + streams * buffers * round;
    let stages = ((available.min(LARGE) - fixed) / (streams * stage)).min(8);
    (stages, buffers, (fixed + streams * stages * stage).max(4 * columns * (weight_rows + 4)))
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
    let mut params = LinearParams {
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
    params.pad = (shape.stages | shape.buffers << 8) as i32;
    let grid = [shape.across(op), op.rows.div_ceil(shape.rows), 1];
    let threads = if shape.rows == 8 { 256 } else { 384 };
    Ok(Launch::new(shape.kernel, grid, threads, shape.shared, &params))
}
