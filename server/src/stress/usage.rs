//! What this process has in use: host memory, descriptors, and memory of a GPU.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::Device;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub resident_bytes: u64,
    pub descriptors: usize,
    /// What this process has allocated; `None` without a GPU.
    pub gpu_held_bytes: Option<u64>,
    /// What all processes have in use, as the driver counts it.
    pub gpu_used_bytes: Option<u64>,
}

impl Usage {
    /// # Errors
    /// `/proc/self` or the driver cannot be read.
    pub fn now(device: Device) -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let resident_bytes = 1024 * kilobytes.context("/proc/self/status does not say VmRSS")?;
        let open = std::fs::read_dir("/proc/self/fd").context("cannot read /proc/self/fd")?;
        let (gpu_held_bytes, gpu_used_bytes) = gpu(device)?.unzip();
        Ok(Self { resident_bytes, descriptors: open.count(), gpu_held_bytes, gpu_used_bytes })
    }
}

#[cfg(feature = "cuda")]
fn gpu(device: Device) -> Result<Option<(u64, u64)>> {
    use flashlane::cuda::{held_bytes, used_bytes};
    let ordinal = match device {
        Device::Cuda(ordinal) => ordinal as usize,
        Device::Auto if held_bytes() > 0 => 0,
        Device::Auto | Device::Cpu => return Ok(None),
    };
    Ok(Some((held_bytes(), used_bytes(ordinal)?)))
}

#[cfg(not(feature = "cuda"))]
#[allow(clippy::unnecessary_wraps, reason = "with a GPU it can fail")]
fn gpu(_: Device) -> Result<Option<(u64, u64)>> {
    Ok(None)
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident_bytes, descriptors, gpu_held_bytes, gpu_used_bytes } = self;
        write!(f, "resident={resident_bytes} descriptors={descriptors}")?;
        let (Some(held), Some(used)) = (gpu_held_bytes, gpu_used_bytes) else { return Ok(()) };
        write!(f, " gpu_held={held} gpu_used={used}")
    }
}
