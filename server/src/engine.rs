//! From flags to a running engine.

use std::sync::Arc;

use flashlane::engine::Generate;

use crate::chat::ChatTokenizer;
use crate::cli::{ModelArgs, Switch};
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

/// Loads the model and starts its engine.
///
/// # Errors
/// A sentence about the checkpoint, the device or the sizes.
pub fn build(args: &ModelArgs) -> anyhow::Result<Loaded> {
    let model = args.model.as_ref().map_or_else(|| "built-in".into(), |dir| dir.display().to_string());
    anyhow::bail!("model {model}: this build contains no engine")
}
