//! NVFP4 and MXFP4 blocks on the device: dequantised to bf16 or e4m3, quantised from bf16. Not an operation of a step.
//!
//! Bit for bit `format::nvfp4` and `format::mxfp4`; what the kernels for benches, conversions and checks call.

use std::ffi::c_void;
use std::sync::Arc;

use super::ffi::{Fp4DequantizeParams, Fp4QuantizeParams};
use super::launch::Params;
use super::{Backend, CudaError, DeviceBuffer, Kernel, Launch};

const THREADS: usize = 256;
/// Elements of a thread.
const UNIT: usize = 32;

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for Fp4DequantizeParams {}
// SAFETY: generated from the kernel's header; gaps are explicit.
unsafe impl Params for Fp4QuantizeParams {}

/// Which block format, with what is not in the blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fp4Kind {
    /// An e4m3 scale for each 16, and this second-level scale.
    Nvfp4 { scale2: f32 },
    /// A ue8m0 scale for each 32.
    Mxfp4,
}

impl Fp4Kind {
    fn parts(self) -> (i32, f32, usize) {
        match self {
            Self::Nvfp4 { scale2 } => (0, scale2, 16),
            Self::Mxfp4 => (1, 1.0, 32),
        }
    }
}

fn check(
    elements: usize,
    kind: Fp4Kind,
    codes: &DeviceBuffer,
    scales: &DeviceBuffer,
) -> Result<(), CudaError> {
    let expect = |operand, expected, found| {
        if expected == found {
            Ok(())
        } else {
            Err(CudaError::Length { op: "nvfp4", operand, expected, found })
        }
    };
    expect("elements, a multiple of 32,", elements.next_multiple_of(UNIT), elements)?;
    expect("codes", elements / 2, codes.len())?;
    expect("scales", elements / kind.parts().2, scales.len())
}

fn dequantize(
    kernel: Kernel,
    kind: Fp4Kind,
    [codes, scales]: [&DeviceBuffer; 2],
    out_scale: f32,
    out: &DeviceBuffer,
    elements: usize,
) -> Result<Launch, CudaError> {
    check(elements, kind, codes, scales)?;
    let (mxfp4, scale2, _) = kind.parts();
    let params = Fp4DequantizeParams {
        codes: codes.address() as *const u8,
        scales: scales.address() as *const u8,
        out: out.address() as *mut c_void,
        elements: elements as i64,
        scale2,
        out_scale,
        mxfp4,
        pad: 0,
    };
    Ok(Launch::new(kernel, [elements.div_ceil(UNIT * THREADS), 1, 1], 256, 0, &params))
}

/// `out` holds bf16: `(e2m1 * scale) * scale2`, rounded once.
///
/// # Errors
/// [`CudaError::Length`] if the buffers do not fit each other; whatever the backend says.
pub fn dequantize_bf16(
    backend: &Arc<dyn Backend>,
    kind: Fp4Kind,
    codes: &DeviceBuffer,
    scales: &DeviceBuffer,
    out: &DeviceBuffer,
) -> Result<(), CudaError> {
    let launch = dequantize(Kernel::Fp4ToBf16, kind, [codes, scales], 1.0, out, out.len() / 2)?;
    // SAFETY: the three buffers hold what the kernel reads and writes for this many elements.
    unsafe { backend.launch(&launch) }
}

/// `out` holds e4m3: the value times `out_scale`, rounded to nearest even, saturating.
///
/// # Errors
/// As [`dequantize_bf16`].
pub fn dequantize_e4m3(
    backend: &Arc<dyn Backend>,
    kind: Fp4Kind,
    codes: &DeviceBuffer,
    scales: &DeviceBuffer,
    out_scale: f32,
    out: &DeviceBuffer,
) -> Result<(), CudaError> {
    let launch = dequantize(Kernel::Fp4ToE4m3, kind, [codes, scales], out_scale, out, out.len())?;
    // SAFETY: the three buffers hold what the kernel reads and writes for this many elements.
    unsafe { backend.launch(&launch) }
}

/// Quantises bf16 values.
///
/// # Errors
/// As [`dequantize_bf16`].
pub fn quantize_bf16(
    backend: &Arc<dyn Backend>,
    kind: Fp4Kind,
    x: &DeviceBuffer,
    codes: &DeviceBuffer,
    scales: &DeviceBuffer,
) -> Result<(), CudaError> {
    let elements = x.len() / 2;
    check(elements, kind, codes, scales)?;
    let (mxfp4, scale2, _) = kind.parts();
    let params = Fp4QuantizeParams {
        x: x.address() as *const c_void,
        codes: codes.address() as *mut u8,
        scales: scales.address() as *mut u8,
        elements: elements as i64,
        scale2,
        mxfp4,
        is_f32: 0,
        pad: 0,
    };
    let launch = Launch::new(Kernel::Fp4Quantize, [elements.div_ceil(UNIT * THREADS), 1, 1], 256, 0, &params);
    // SAFETY: the three buffers hold what the kernel reads and writes for this many elements.
    unsafe { backend.launch(&launch) }
}
