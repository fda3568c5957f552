//! Launch of `linear`.

use std::ffi::c_void;

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::LinearParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Epilogue, Linear};

/// A kernel, the rows that one block serves, its tiles of weight rows, and its dynamic shared memory.
struct Shape {
    kernel: Kernel,
    rows: usize,
    tiles: usize,
    shared: usize,
}

/// Bytes of a stage of the ring: so many rows by so many steps.
const fn stage(rows: usize, steps: usize) -> usize {
    rows * (steps * 128 + 64 + steps * 16 + 16)
}

impl Shape {
    /// By the number of rows.
    fn of(rows: usize) -> Self {
        if rows <= 8 {
            Self { kernel: Kernel::Linear8, rows: 8, tiles: 1, shared: 4 * stage(16, 8) }
        } else {
            Self { kernel: Kernel::Linear32, rows: 32, tiles: 2, shared: 2 * stage(32, 8) }
        }
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
    let shape = Shape::of(op.rows);
    let columns = shape.tiles * if swiglu { 8 } else { 16 };
    let across = op.groups * (op.cols_out() / op.groups).div_ceil(columns);
    let grid = [across, op.rows.div_ceil(shape.rows), 1];
    Ok(Launch::new(shape.kernel, grid, 256, shape.shared, &params))
}
