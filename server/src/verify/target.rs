//! What is to be proved: a model's shape, the sizes of an engine, and which step is looked at closely.

use std::path::Path;

use anyhow::{Context, bail};
use flashlane::checkpoint::{ModelConfig, presets};
use flashlane::engine::EngineConfig;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, ModelWeights, Registry, StepShape};
use flashlane::ops::Dtype;
use flashlane::step::Numerics;

use super::{Schedule, VerifyArgs};
use crate::cli::IndexK;
use crate::engine::built_in;

/// Rows of a decode step that anyone may want; more only costs time.
const MAX_BATCH: usize = 1024;

/// Everything that the steps of one engine are built from.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) engine: EngineConfig,
    pub(super) weights: ModelWeights,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a GPU takes it"))]
    pub(super) registry: Registry,
    pub(super) layout: CacheLayout,
    /// Every bucket, prefill last.
    pub(super) shapes: Vec<StepShape>,
    /// Which of `shapes` is reported, and gets the mutant.
    pub(super) focus: usize,
    pub(super) schedule: Schedule,
    pub(super) index_k: IndexK,
}

impl Target {
    /// # Errors
    /// What is wrong with the arguments, or with `config.json`.
    pub(super) fn open(args: &VerifyArgs) -> anyhow::Result<Self> {
        let (name, model) = model(args)?;
        let engine = engine(args, &model)?;
        let (weights, registry) = ModelWeights::new(&model, engine.max_positions());
        let layout = CacheLayout::new(&weights, engine.numerics, engine.cache_size());
        let shapes = engine.shapes();
        let prefill = shapes.len() - 1;
        let focus = if args.prefill { prefill } else { prefill - 1 };
        let (schedule, index_k) = (args.schedule, args.index_k);
        Ok(Self { name, engine, weights, registry, layout, shapes, focus, schedule, index_k })
    }

    pub(super) fn shape(&self) -> StepShape {
        self.shapes[self.focus]
    }
}

fn model(args: &VerifyArgs) -> anyhow::Result<(String, ModelConfig)> {
    if args.flash {
        return Ok(("DeepSeek-V4-Flash".to_owned(), presets::flash()));
    }
    if args.pro {
        return Ok(("DeepSeek-V4-Pro".to_owned(), presets::pro()));
    }
    let Some(dir) = &args.model else {
        return Ok(("the built-in model".to_owned(), ModelConfig::from_json(built_in::CONFIG)?.0));
    };
    Ok((dir.display().to_string(), read(dir)?))
}

fn read(dir: &Path) -> anyhow::Result<ModelConfig> {
    let path = dir.join("config.json");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(ModelConfig::from_json(&bytes)?.0)
}

fn engine(args: &VerifyArgs, model: &ModelConfig) -> anyhow::Result<EngineConfig> {
    let full = args.flash || args.pro;
    let batch = args.batch.unwrap_or(if full { 32 } else { 8 });
    if !(1..=MAX_BATCH).contains(&batch) {
        bail!("--batch {batch}: must be in 1..={MAX_BATCH}");
    }
    let limit = model.max_position_embeddings;
    let positions = args.max_positions.unwrap_or(limit.min(if full { 131_072 } else { 8192 }));
    if !(1..=limit).contains(&positions) {
        bail!("--max-positions {positions}: this model's positions end at {limit}");
    }
    let index = match args.index_k {
        IndexK::Bf16 => IndexFormat::Bf16,
        IndexK::Fp8 => IndexFormat::Fp8,
        IndexK::Fp4 => IndexFormat::Fp4,
    };
    Ok(EngineConfig {
        max_model_len: positions,
        max_num_seqs: batch,
        decode_buckets: flashlane::engine::DecodeBuckets::default(),
        max_num_queued: 0,
        num_blocks: None,
        numerics: Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index },
        vocab: model.vocab_size,
        threads: None,
        instruments: flashlane::instrument::Instruments::default(),
    })
}
