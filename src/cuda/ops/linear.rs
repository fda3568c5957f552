//! Launch of `linear`.

use std::ffi::c_void;

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::{self, LinearParams, Weight};
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Epilogue, Linear};

/// Elements of K that the kernels for many rows stage at once.
const ROUND: usize = 128;
/// Weight rows of a block of theirs.
const WEIGHT_ROWS: usize = 128;
/// Shared memory of a block on architectures that have wgmma.
const LARGE: usize = 227 << 10;

/// Shared memory of a block that streams weights: eight rings of three stages, and two sets of sums.
const STREAM: usize = 8 * 3 * (16 * 128 + 16 * 16) + 2 * 8 * 8 * 17 * 4;
/// Blocks that do so on a multiprocessor.
const STREAMING: usize = 3;

/// A kernel, the activation rows and the weight rows of one of its blocks, and its dynamic shared memory.
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
        let few = |kernel, shared| Self { kernel, rows: 8, weight_rows: 16, blocks: 1, threads: 256, shared };
        match (op.rows, (op.cols_in / op.groups).is_multiple_of(step)) {
            (..=8, true) if format == ffi::kWeightFp8Block => return few(Kernel::Linear8Fp8, STREAM),
            (..=8, _) | (_, false) => return few(Kernel::Linear8, 4 * 16 * (8 * 128 + 64 + 8 * 16 + 16)),
            _ => {}
        }
        let many = |kernel, rows, blocks| {
            let shared = shared(rows, blocks, format);
            Self { kernel, rows, weight_rows: WEIGHT_ROWS, blocks, threads: 256, shared }
        };
        // Blocks that share the segments out where all find a place at once; else blocks that have all of K each, or half of it,
        // where they fill most of the GPU; as measured on an H200.
        if let Some(shape) = RINGS.iter().find_map(|ring| ring.shape(op, format, b)) {
            return shape;
        }
        let (whole, half) = (many(Kernel::Linear64Alone, 64, 1), many(Kernel::Linear128, 128, 2));
        let (large, fp4) = (b.all.shared_memory >= LARGE, step == 256);
        match op.rows {
            65.. if large && 9 * half.count(op) >= 4 * b.all.multiprocessors => half,
            _ if large && 4 * whole.count(op) >= 3 * b.all.multiprocessors => whole,
            33.. if fp4 => many(Kernel::Linear64, 64, 4),
            _ => many(Kernel::Linear32, 32, 4),
        }
    }

    /// Blocks of the grid along the output columns: those that stream take one tile after another.
    fn wide(&self, op: &Linear, multiprocessors: usize) -> usize {
        let most = if self.kernel == Kernel::Linear8Fp8 { STREAMING * multiprocessors } else { usize::MAX };
        self.across(op).min(most)
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

/// Shared memory of the kernels for many rows: two rounds of activations and the ring of weights, as deep as `wide_stages`
/// says, and the sums of a block's earlier segments.
fn shared(columns: usize, blocks: usize, format: u32) -> usize {
    let (bytes, [of_128, alone, of_four]) = match format {
        ffi::kWeightBf16 => (2 * ROUND, [3, 4, 2]),
        ffi::kWeightFp8Block => (ROUND + 4, [5, 6, 2]),
        ffi::kWeightNvfp4 => (ROUND / 2 + 8, [8, 8, 3]),
        _ => (ROUND / 2 + 4, [8, 8, 3]),
    };
    let stages = match blocks {
        1 => alone,
        2 => of_128,
        _ => of_four,
    };
    let activations = 2 * ROUND / 8 * (columns * 16 + 16);
    let sums = match blocks {
        1 => 2,
        4 if format == ffi::kWeightBf16 => 0,
        _ => 1,
    };
    activations + stages * WEIGHT_ROWS * bytes + sums * 4 * columns * (WEIGHT_ROWS + 4)
}

/// A kernel whose weights and activations come through one ring of stages, as `csrc/linear.cu` has it.
struct Ring {
    kernel: Kernel,
    /// Fewest rows for which it is meant, and those of a block.
    from: usize,
    rows: usize,
    weight_rows: usize,
    /// Blocks that share the segments of K, and segments that a block sums side by side.
    blocks: usize,
    segments: usize,
    threads: u32,
    /// Bytes of the ring.
    room: usize,
    /// For how many blocks a multiprocessor it is meant, in halves: more than the first, up to the second.
    halves: [usize; 2],
    fp4: bool,
}

#[rustfmt::skip]
const RINGS: [Ring; 4] = [
    Ring { kernel: Kernel::Linear32Eighth, from: 9, rows: 32, weight_rows: 128, blocks: 8, segments: 1, threads: 128, room: 99 << 10, halves: [0, 2], fp4: true },
    Ring { kernel: Kernel::Linear64Eighth, from: 33, rows: 64, weight_rows: 128, blocks: 8, segments: 1, threads: 128, room: 112 << 10, halves: [0, 2], fp4: false },
    Ring { kernel: Kernel::Linear64Half, from: 33, rows: 64, weight_rows: 64, blocks: 2, segments: 4, threads: 256, room: 224 << 10, halves: [0, 2], fp4: false },
    Ring { kernel: Kernel::Linear64Turns, from: 33, rows: 64, weight_rows: 64, blocks: 2, segments: 1, threads: 128, room: 112 << 10, halves: [1, 4], fp4: true },
];

impl Ring {
    /// `None` where another kernel is faster, as measured on an H200, or where the ring has no room.
    fn shape(&self, op: &Linear, format: u32, b: &Bound<'_>) -> Option<Shape> {
        let stages = (self.room / self.stage(format)).min(8);
        let sums = 4 * self.segments * self.rows * (self.weight_rows + 4);
        let shape = Shape {
            kernel: self.kernel,
            rows: self.rows,
            weight_rows: self.weight_rows,
            blocks: self.blocks,
            threads: self.threads,
            shared: (stages * self.stage(format)).max(sums),
        };
        let [halves, multiprocessors] = [2 * shape.count(op), b.all.multiprocessors];
        let places = halves > self.halves[0] * multiprocessors && halves <= self.halves[1] * multiprocessors;
        let fp4 = format != ffi::kWeightBf16 && format != ffi::kWeightFp8Block;
        let room = self.room * self.halves[1] / 2 <= b.all.shared_memory;
        (op.rows >= self.from && places && room && (self.fp4 || !fp4)).then_some(shape)
    }

    /// Bytes of a stage: a step of each segment.
    fn stage(&self, format: u32) -> usize {
        let (elements, scales) = match format {
            ffi::kWeightBf16 => (64, 0),
            ffi::kWeightFp8Block => (128, 4),
            ffi::kWeightNvfp4 => (256, 16),
            _ => (256, 8),
        };
        self.segments * (self.weight_rows * (128 + scales) + self.rows * 2 * elements)
    }
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
    let grid = [shape.wide(op, b.all.multiprocessors), op.rows.div_ceil(shape.rows), 1];
    Ok(Launch::new(shape.kernel, grid, shape.threads, shape.shared, &params))
}
