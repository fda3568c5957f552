//! From flags to a running engine.

use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use anyhow::Context;
use anyhow::bail;
use flashlane::checkpoint::{self, Checkpoint, ModelConfig};
#[cfg(feature = "cuda")]
use flashlane::cuda::{Backend, IndexReader, Options, RunMode};
use flashlane::engine::{Engine, EngineConfig, Generate, SamplingParams};
#[cfg(feature = "cuda")]
use flashlane::engine::{Forced, GpuConfig, IdleLog};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::Dtype;
use flashlane::step::Numerics;

use crate::chat::ChatTokenizer;
#[cfg(feature = "cuda")]
use crate::cli::{self, OnOff, Schedule};
use crate::cli::{Device, IndexK, KvCacheDtype, ModelArgs, Rounding, Switch};
use crate::http::Defaults;

/// An engine with what its callers need to speak to it.
#[derive(Debug)]
pub struct Loaded {
    pub engine: Arc<dyn Generate>,
    pub tokenizer: Arc<ChatTokenizer>,
    /// What the model is called unless the operator says otherwise.
    pub name: String,
    pub defaults: Defaults,
}

impl Loaded {
    /// `defaults`: the model's own.
    pub fn new(
        engine: Arc<dyn Generate>,
        tokenizer: ChatTokenizer,
        name: String,
        defaults: Defaults,
        args: &ModelArgs,
    ) -> Self {
        let thinking = match args.thinking {
            Switch::Auto => defaults.thinking,
            Switch::On => true,
            Switch::Off => false,
        };
        let tokenizer = Arc::new(tokenizer);
        Self { engine, tokenizer, name, defaults: Defaults { thinking, ..defaults } }
    }
}

/// The model that is compiled into the binary.
pub(crate) mod built_in {
    pub(crate) const CONFIG: &[u8] = include_bytes!("../../models/tiny/config.json");
    pub(crate) static TENSORS: &[u8] = include_bytes!("../../models/tiny/model.safetensors");
    pub(crate) const TOKENIZER: &[u8] = include_bytes!("../../models/tiny/tokenizer.json");
}

/// Longest sequence of a model that allows more, unless the operator asks for it: what a laptop's memory holds.
const DEFAULT_MODEL_LEN: usize = 8192;

/// Loads the model and starts its engine.
///
/// # Errors
/// A sentence about the checkpoint, the device or the sizes.
pub fn build(args: &ModelArgs) -> anyhow::Result<Loaded> {
    match gpu(args.device)? {
        #[cfg(feature = "cuda")]
        Some(gpu) => build_on(args, gpu, &how(args)),
        #[cfg(not(feature = "cuda"))]
        Some(never) => match never {},
        None => build_with(args, Engine::on_cpu),
    }
}

/// As [`build`], on a GPU that runs what no proof allows.
///
/// # Errors
/// As [`build`]; there may be no GPU.
#[cfg(feature = "cuda")]
pub fn build_forced(args: &ModelArgs, forced: Forced) -> anyhow::Result<Loaded> {
    let Some(gpu) = gpu(args.device)? else { bail!("--device: there is no GPU to force a mutant on") };
    build_on(args, gpu, &GpuConfig { forced: Some(forced), ..how(args) })
}

/// As [`build`], on a GPU whose idle time is noted.
///
/// # Errors
/// As [`build`]; there may be no GPU.
#[cfg(feature = "cuda")]
pub fn build_timed(args: &ModelArgs, idle: IdleLog) -> anyhow::Result<Loaded> {
    let Some(gpu) = gpu(args.device)? else { bail!("--device: there is no GPU") };
    build_on(args, gpu, &GpuConfig { idle: Some(idle), ..how(args) })
}

#[cfg(feature = "cuda")]
fn build_on(args: &ModelArgs, gpu: Arc<dyn Backend>, how: &GpuConfig) -> anyhow::Result<Loaded> {
    build_with(args, |checkpoint, config| Engine::on_gpu(checkpoint, config, gpu, how))
}

#[cfg(feature = "cuda")]
fn how(args: &ModelArgs) -> GpuConfig {
    let mode = RunMode {
        captured: args.graph == OnOff::On,
        forked: args.schedule == Schedule::Forked,
        programmatic: args.pdl == OnOff::On,
    };
    let index_reader = match args.index_reader {
        cli::IndexReader::Simple => IndexReader::Simple,
        cli::IndexReader::Fast => IndexReader::Fast,
    };
    let options = Options { index_reader };
    GpuConfig { options, mode, ..GpuConfig::default() }
}

/// The GPU to run on; `None` is the CPU. `auto` takes the first GPU that this build has kernels for.
#[cfg(feature = "cuda")]
fn gpu(device: Device) -> anyhow::Result<Option<Arc<dyn Backend>>> {
    use flashlane::cuda::{Gpu, device_count, kernels_built};
    let ordinal = match device {
        Device::Cpu => return Ok(None),
        Device::Auto if !kernels_built() || device_count() == 0 => return Ok(None),
        Device::Auto => 0,
        Device::Cuda(ordinal) => ordinal as usize,
    };
    let gpu = Gpu::open(ordinal).with_context(|| format!("--device cuda:{ordinal}"))?;
    tracing::info!(device = ordinal, name = gpu.device_name()?, "the engine runs on a GPU");
    Ok(Some(Arc::new(gpu)))
}

#[cfg(not(feature = "cuda"))]
fn gpu(device: Device) -> anyhow::Result<Option<std::convert::Infallible>> {
    match device {
        Device::Cuda(ordinal) => bail!(
            "--device cuda:{ordinal}: this build is without CUDA; run tools/get-cuda.sh and build with --features cuda"
        ),
        Device::Auto | Device::Cpu => Ok(None),
    }
}

/// As [`build`], with the engine that `start` makes of the checkpoint and sizes.
///
/// # Errors
/// As [`build`], and those of `start`.
pub fn build_with<E>(
    args: &ModelArgs,
    start: impl FnOnce(&Checkpoint, EngineConfig) -> Result<Engine, E>,
) -> anyhow::Result<Loaded>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let (checkpoint, tokenizer, name) = open(args)?;
    let config = config(args, &checkpoint.config)?;
    let tokenizer = ChatTokenizer::for_model(&tokenizer, &checkpoint.config)?;
    let engine = start(&checkpoint, config)?;
    tracing::info!(
        model = name,
        layers = checkpoint.config.num_hidden_layers,
        max_model_len = config.max_model_len,
        max_num_seqs = config.max_num_seqs,
        "the engine has started"
    );
    // The built-in model is trained to be exact, and for answers without reasoning; DeepSeek's own API thinks by default.
    let thinking = args.model.is_some();
    let temperature = if thinking { 1.0 } else { 0.0 };
    let sampling = SamplingParams { temperature, ..SamplingParams::default() };
    Ok(Loaded::new(Arc::new(engine), tokenizer, name, Defaults { thinking, sampling }, args))
}

/// The checkpoint, the bytes of its tokenizer and what it is called.
fn open(args: &ModelArgs) -> anyhow::Result<(Checkpoint, Cow<'static, [u8]>, String)> {
    let Some(dir) = &args.model else {
        let checkpoint = Checkpoint::from_bytes(built_in::CONFIG, built_in::TENSORS)?;
        return Ok((checkpoint, built_in::TOKENIZER.into(), "flashlane-tiny".to_owned()));
    };
    let checkpoint = Checkpoint::open(dir)?;
    let tokenizer = checkpoint::read_file(&dir.join("tokenizer.json"))?;
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.clone());
    let name = whole.file_name().map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned());
    Ok((checkpoint, tokenizer.into(), name))
}

fn config(args: &ModelArgs, model: &ModelConfig) -> anyhow::Result<EngineConfig> {
    let limit = model.max_position_embeddings;
    let max_model_len = args.max_model_len.unwrap_or(limit.min(DEFAULT_MODEL_LEN));
    if max_model_len > limit {
        bail!("--max-model-len {max_model_len}: this model's positions end at {limit}");
    }
    Ok(EngineConfig {
        max_model_len,
        max_num_seqs: args.max_num_seqs,
        decode_buckets: args.decode_buckets,
        max_num_queued: args.max_num_queued_requests,
        num_blocks: args.num_pages,
        numerics: numerics(args)?,
        vocab: model.vocab_size,
        threads: args.threads,
        instruments: args.instruments.options(),
    })
}

fn numerics(args: &ModelArgs) -> anyhow::Result<Numerics> {
    let trained = args.rounding == Rounding::Trained;
    let kv = match (args.kv_cache_dtype, trained) {
        (Some(KvCacheDtype::Fp8), false) => {
            bail!("--kv-cache-dtype fp8 rounds; with --rounding off leave it out, or use bf16")
        }
        (Some(KvCacheDtype::Bf16), _) => KvFormat::Bf16,
        (Some(KvCacheDtype::Fp8) | None, true) => KvFormat::Fp8,
        (None, false) => KvFormat::F32,
    };
    let index = match (args.index_k, trained) {
        (Some(IndexK::Fp8), _) => IndexFormat::Fp8,
        (Some(IndexK::Fp4), _) => IndexFormat::Fp4,
        (Some(IndexK::Bf16), _) | (None, true) => IndexFormat::Bf16,
        (None, false) => IndexFormat::F32,
    };
    let activation = if trained { Dtype::Bf16 } else { Dtype::F32 };
    Ok(Numerics { activation, trained, kv, index })
}
