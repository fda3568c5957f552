//! Why something on the device could not be done.

use crate::ops::Dtype;

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error("there is no CUDA driver on this machine: libcuda.so was not found")]
    NoDriver,
    #[error("there is no GPU {wanted}: the driver sees {found}")]
    NoDevice { wanted: usize, found: usize },
    #[error("the stream belongs to another context than the primary one of GPU {ordinal}")]
    ForeignStream { ordinal: usize },
    #[error("the buffer lies on GPU {home}, expected GPU {ordinal}")]
    ForeignBuffer { home: i32, ordinal: usize },
    #[error(
        "this build has no kernel {kernel}: nvcc was not there when it was compiled (tools/get-cuda.sh brings one)"
    )]
    NoKernel { kernel: &'static str },
    #[error("{call}: {message}")]
    Driver { call: &'static str, message: String },
    #[error("the emulator could not run {kernel}: {reason}")]
    Emulator { kernel: &'static str, reason: &'static str },
    #[error("a device copy of {len} bytes at {offset} leaves a buffer of {bytes}")]
    Range { offset: usize, len: usize, bytes: usize },
    #[error("{op}: {operand} has {found} elements, expected {expected}")]
    Length { op: &'static str, operand: &'static str, expected: usize, found: usize },
    #[error("{op}: {operand} is {found:?}, expected {expected:?}")]
    Dtype { op: &'static str, operand: &'static str, expected: Dtype, found: Dtype },
    #[error("{op}: {operand} has no memory on the device")]
    Unbound { op: &'static str, operand: &'static str },
    #[error("{op}: weight {operand} is {found}, expected {expected}")]
    Weight { op: &'static str, operand: &'static str, expected: &'static str, found: &'static str },
    #[error("{weight} cannot be loaded for the GPU: {problem}")]
    Stack { weight: String, problem: &'static str },
    #[error("{op}: {what} is {found}, and the kernel takes at most {limit}")]
    Limit { op: &'static str, what: &'static str, limit: usize, found: usize },
    #[error("{op}: {what} is not supported on the GPU")]
    Unsupported { op: &'static str, what: &'static str },
}

impl CudaError {
    /// True if the operation is valid but belongs to the CPU.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }
}
