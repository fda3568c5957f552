//! Runs a bound operation on a device.

use anyhow::bail;
use flashlane::step::Memory;
use flashlane::{cpu, reference};

use super::bind::{Bound, Stored};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// The oracle in f64.
    Reference,
    Cuda(u32),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "reference" => Ok(Self::Reference),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number
                    .map(Self::Cuda)
                    .ok_or_else(|| format!("expected cpu, reference or cuda:N, found {text:?}"))
            }
        }
    }
}

/// The memory after the run.
///
/// # Errors
/// What the executor says of the operands; there may be no such GPU.
pub(super) fn run(bound: &mut Bound, place: Place) -> anyhow::Result<Memory> {
    let mut memory = bound.memory();
    match place {
        Place::Cpu => {
            let mut weights = cpu::Weights::new();
            for (id, stored) in &bound.weights {
                match stored.clone() {
                    Stored::Floats(values) => weights.insert_f32(*id, values),
                    Stored::Matrix(matrix) => weights.insert(*id, matrix),
                }
            }
            cpu::serial::run_step(&bound.graph, &bound.plan, &mut memory, &mut bound.resident, &weights)?;
        }
        Place::Reference => {
            let mut weights = reference::Weights::new();
            for (id, stored) in &bound.weights {
                match stored {
                    Stored::Floats(values) => weights.insert_f32(*id, values),
                    Stored::Matrix(matrix) => weights.insert_f32(*id, &matrix.decode()),
                }
            }
            reference::run_step(&bound.graph, &bound.plan, &mut memory, &mut bound.resident, &weights)?;
        }
        Place::Cuda(ordinal) => on_gpu(bound, &mut memory, ordinal)?,
    }
    Ok(memory)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &mut Bound, _: &mut Memory, ordinal: u32) -> anyhow::Result<()> {
    bail!(
        "--device cuda:{ordinal}: this build is without CUDA; run tools/get-cuda.sh and build with --features cuda"
    )
}

#[cfg(feature = "cuda")]
fn on_gpu(bound: &mut Bound, memory: &mut Memory, ordinal: u32) -> anyhow::Result<()> {
    use std::sync::Arc;

    use anyhow::Context;
    use flashlane::cuda::{Backend, DeviceWeights, Executor, Gpu, Options};
    use flashlane::ops::{Dtype, Op};

    let exact =
        matches!(bound.graph.nodes[0].op, Op::TopK(_) | Op::Router(_) | Op::Sample(_) | Op::IndexLogits(_));
    if !exact && bound.dtype() != Dtype::Bf16 {
        bail!("--device cuda:{ordinal}: activations must be BF16 on a GPU, found F32");
    }
    if let Some(name) = bound.wide {
        bail!("--device cuda:{ordinal}: tensor {name} must be BF16, or U8 codes, on a GPU, found F32");
    }
    let gpu = Gpu::open(ordinal as usize).with_context(|| format!("--device cuda:{ordinal}"))?;
    let backend: Arc<dyn Backend> = Arc::new(gpu);
    let mut weights = DeviceWeights::default();
    for (id, stored) in &bound.weights {
        weights.insert(*id, upload(&backend, stored)?);
    }
    let executor = Executor { backend, weights, options: Options::default() };
    executor.run_on_host_memory(&bound.graph, &bound.plan, memory, &mut bound.resident)?;
    Ok(())
}

#[cfg(feature = "cuda")]
fn upload(
    backend: &std::sync::Arc<dyn flashlane::cuda::Backend>,
    stored: &Stored,
) -> anyhow::Result<flashlane::cuda::DeviceWeight> {
    use flashlane::checkpoint::WeightFormat;
    use flashlane::cuda::{DeviceWeight, MatrixFormat};

    let matrix = match stored {
        Stored::Floats(values) => {
            return Ok(DeviceWeight::plain(backend, MatrixFormat::F32, bytemuck::cast_slice(values))?);
        }
        Stored::Matrix(matrix) => matrix,
    };
    let codes: Vec<u8> = matrix.parts.iter().flat_map(|p| p.codes.iter().copied()).collect();
    let scales: Vec<u8> = matrix.parts.iter().flat_map(|p| p.scales.iter().copied()).collect();
    let global: Vec<f32> = matrix.parts.iter().map(|p| p.scale2).collect();
    Ok(match matrix.format {
        WeightFormat::Nvfp4 => DeviceWeight::scaled(backend, MatrixFormat::Nvfp4, &codes, &scales, &global)?,
        WeightFormat::Mxfp4 => DeviceWeight::scaled(backend, MatrixFormat::Mxfp4, &codes, &scales, &[])?,
        WeightFormat::Bf16 => DeviceWeight::plain(backend, MatrixFormat::Bf16, &codes)?,
        other => bail!("a weight in {other:?} has no kernel here"),
    })
}
