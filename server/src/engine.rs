//! From flags to a running engine.

use std::sync::Arc;

use anyhow::Context;
use flashlane::checkpoint::Checkpoint;
use flashlane::engine::{Engine, EngineConfig, Generate, SamplingParams};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::Dtype;
use flashlane::step::Numerics;

use crate::chat::ChatTokenizer;
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
    /// `tokenizer_json`: the bytes of the checkpoint's `tokenizer.json`; `defaults`: the model's own.
    ///
    /// # Errors
    /// The tokenizer is not one that chat can be encoded with.
    pub fn new(
        engine: Arc<dyn Generate>,
        tokenizer_json: &[u8],
        name: String,
        defaults: Defaults,
        args: &ModelArgs,
    ) -> anyhow::Result<Self> {
        let tokenizer = Arc::new(ChatTokenizer::from_bytes(tokenizer_json)?);
        let thinking = match args.thinking {
            Switch::Auto => defaults.thinking,
            Switch::On => true,
            Switch::Off => false,
        };
        Ok(Self { engine, tokenizer, name, defaults: Defaults { thinking, ..defaults } })
    }
}

/// Sequences longer than this are only allowed when asked for, because the cache is laid out for all of them.
const DEFAULT_MAX_MODEL_LEN: usize = 8192;

/// Loads the model and starts its engine.
///
/// # Errors
/// A sentence about the checkpoint, the device or the sizes.
pub fn build(args: &ModelArgs) -> anyhow::Result<Loaded> {
    let Some(dir) = &args.model else {
        anyhow::bail!("this build has no built-in model; name a checkpoint directory with --model DIR");
    };
    if let Device::Cuda(number) = args.device {
        anyhow::bail!("this build runs on the CPU only, so there is no cuda:{number}; use --device cpu");
    }
    let tokenizer = dir.join("tokenizer.json");
    let tokenizer =
        std::fs::read(&tokenizer).with_context(|| format!("cannot read {}", tokenizer.display()))?;
    let checkpoint = Checkpoint::open(dir)?;
    let engine = Engine::on_cpu(&checkpoint, config(args, &checkpoint))?;
    let name =
        dir.canonicalize()?.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into());
    let sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let defaults = Defaults { thinking: true, sampling };
    Loaded::new(Arc::new(engine), &tokenizer, name, defaults, args)
}

fn config(args: &ModelArgs, checkpoint: &Checkpoint) -> EngineConfig {
    let model = &checkpoint.config;
    EngineConfig {
        max_model_len: args.max_model_len.unwrap_or(DEFAULT_MAX_MODEL_LEN).min(model.max_position_embeddings),
        max_num_seqs: args.max_num_seqs,
        max_num_queued: args.max_num_queued_requests,
        num_blocks: args.num_pages,
        numerics: numerics(args),
        vocab: model.vocab_size,
        threads: None,
    }
}

fn numerics(args: &ModelArgs) -> Numerics {
    let trained = args.rounding == Rounding::Trained;
    let kv = match args.kv_cache_dtype {
        Some(KvCacheDtype::Fp8) => KvFormat::Fp8,
        Some(KvCacheDtype::Bf16) => KvFormat::Bf16,
        None if trained => KvFormat::Fp8,
        None => KvFormat::F32,
    };
    let index = match args.index_k {
        Some(IndexK::Bf16) => IndexFormat::Bf16,
        Some(IndexK::Fp8) => IndexFormat::Fp8,
        Some(IndexK::Fp4) => IndexFormat::Fp4,
        None if trained => IndexFormat::Bf16,
        None => IndexFormat::F32,
    };
    Numerics { activation: Dtype::F32, trained, kv, index }
}
