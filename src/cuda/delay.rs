//! Launch of `delay`, which belongs to no step: a script puts it before a node to make a race loud.

use super::ffi::DelayParams;
use super::launch::Params;
use super::{Kernel, Launch};

// SAFETY: generated from the kernel's header; it has one field.
unsafe impl Params for DelayParams {}

/// A launch that keeps its stream busy for some microseconds and touches no memory.
pub(super) fn delay_launch(microseconds: u32) -> Launch {
    let params = DelayParams { nanoseconds: i64::from(microseconds) * 1000 };
    Launch::new(Kernel::Delay, [1, 1, 1], 32, 0, &params)
}
