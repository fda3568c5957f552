//! Launch of `linear`.

use std::ffi::c_void;

use crate::cuda::bindings::Bound;
use crate::cuda::ffi::LinearParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, Epilogue, Linear};

/// Rows up to which a block has one tile of 16 weight rows by 8 rows; above, two by four.
const NARROW: usize = 8;
const WIDE: usize = 32;
/// Bytes of the ring of weights: 8 warps, 4 stages.
const RING: usize = 8 * 4 * 2304;

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
    let (kernel, width, high) =
        if op.rows <= NARROW { (Kernel::Linear8, NARROW, 1) } else { (Kernel::Linear32, WIDE, 2) };
    let columns = high * if swiglu { 8 } else { 16 };
    let tiles = op.groups * (op.cols_out() / op.groups).div_ceil(columns);
    Ok(Launch::new(kernel, [tiles, op.rows.div_ceil(width), 1], 256, RING, &params))
}
