//! The GPU path: hand-written kernels (`csrc/`), loaded through the driver and launched with checked operands.
//!
//! Nothing of CUDA is linked: without a driver [`Gpu::open`] is an error value, and the binary starts anywhere. What runs a
//! kernel is a [`Backend`]: the driver ([`Gpu`]), or with feature `emulator` the CPU ([`Emulator`]), on the same sources
//! with the same launches. Each operation's module in `ops` checks the operands of one op against its dimensions and
//! says how to launch it; [`Executor`] runs the nodes of a step, eagerly or as a captured graph that was read back and proved.
//!
//! With feature `cust`, [`Gpu`] also works on streams and buffers that a caller holds through crate `cust`.
//!
//! Activations are bf16 here (`f32` storage is the CPU's).
//!
//! The only `unsafe` of the crate but two: raw device memory is owned by [`DeviceBuffer`] alone, and a launch reaches the
//! device only with operands that came through [`Bindings`], which checks that each lies within its buffer.

#[cfg(all(feature = "cust", not(all(target_arch = "x86_64", target_os = "linux"))))]
compile_error!(
    "feature cust is for x86-64 Linux: its jumps to the driver are written for that calling convention"
);

mod backend;
mod bindings;
mod canary;
mod capture;
mod certify;
mod delay;
mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod error;
mod executor;
#[allow(
    missing_debug_implementations,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::pedantic
)]
#[rustfmt::skip]
mod ffi;
mod fp4;
#[cfg(feature = "cust")]
mod interop;
mod kernels;
mod launch;
mod load;
mod ops;
mod random;
mod recorder;
mod resident;
mod route;
#[cfg(feature = "cust")]
mod shim;
mod staging;
mod unbacked;
mod usage;
mod weights;

pub use backend::{Backend, Capture, DeviceBuffer, Fence, Replay, Script, Staging};
pub use bindings::Bindings;
pub use canary::Hasher;
pub use certify::{
    Certificate, Evidence, KernelCall, NodeKind, Place, ReadEdge, ReadNode, Reading, Uncertified,
    displacement,
};
use delay::delay_launch;
pub use driver::{Gpu, device_count};
#[cfg(feature = "emulator")]
pub use emulator::{Emulator, Planted, host};
pub use error::CudaError;
pub use executor::{Executor, Ready, RunMode};
pub use fp4::{Fp4Kind, dequantize_bf16, dequantize_e4m3, quantize_bf16};
pub use kernels::{Kernel, kernels_built};
pub use launch::{Fault, Launch};
pub use ops::{IndexReader, Options, launch};
pub use recorder::Recorder;
pub use resident::{DeviceResident, DeviceStep};
pub use route::{Route, Stop};
pub use unbacked::{Unbacked, read_back};
pub use usage::{held_bytes, used_bytes};
pub use weights::{DeviceWeight, DeviceWeights, MatrixFormat};

#[cfg(all(test, feature = "bindgen"))]
mod tests {
    /// The committed structs are what the headers give. With `FLASHLANE_BLESS=1` they are rewritten.
    #[test]
    fn parameter_structs_are_fresh() {
        let made = include_str!(concat!(env!("OUT_DIR"), "/ffi.rs"));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/ffi.rs");
        if std::env::var("FLASHLANE_BLESS").is_ok_and(|v| v == "1") {
            std::fs::write(path, made).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), made, "run with FLASHLANE_BLESS=1 and commit");
    }
}
