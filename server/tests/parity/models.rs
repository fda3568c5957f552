//! The two models, and what they are asked.

use flashlane::checkpoint::synthetic::{self, Counter, tiny_config};
use flashlane::checkpoint::{Checkpoint, ModelConfig};
use flashlane::model::{Loaded, ModelWeights, load};
use flashlane::step::WeightId;
use flashlane_server::tasks::items::{Kind, Shape, item};
use flashlane_server::tasks::lexicon::Lexicon;
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// Longest sequence here.
pub(crate) const POSITIONS: usize = 1024;

pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) weights: ModelWeights,
    pub(crate) loaded: Vec<(WeightId, Loaded)>,
}

impl Model {
    fn new(checkpoint: &Checkpoint) -> Self {
        let (weights, registry) = ModelWeights::new(&checkpoint.config, POSITIONS);
        let loaded = load(&registry, checkpoint).unwrap();
        Self { config: checkpoint.config.clone(), weights, loaded }
    }
}

pub(crate) fn built_in() -> Model {
    let config = include_bytes!("../../../models/tiny/config.json");
    let tensors: &[u8] = include_bytes!("../../../models/tiny/model.safetensors");
    Model::new(&Checkpoint::from_bytes(config, tensors.to_vec()).unwrap())
}

/// A layer of each kind and 16 experts, of which a token goes to four. Embeddings are large beside what layers add, and the head's
/// rows are those of other tokens, so that one logit stands out, as one does in a trained model; everything else is random. With
/// plain random weights every other token would be decided by a choice between experts or rows that are a rounding apart.
pub(crate) fn flash_shaped() -> Model {
    let config = ModelConfig {
        hidden_size: 256,
        num_attention_heads: 4,
        o_groups: 2,
        index_n_heads: 4,
        index_topk: 16,
        n_routed_experts: 16,
        num_experts_per_tok: 4,
        swiglu_limit: 10.0,
        ..tiny_config()
    };
    let file = synthetic::safetensors(&config, 11).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let head = pointed_head(tensors.tensor("embed.weight").unwrap().data(), config.hidden_size);
    let embed = larger(tensors.tensor("embed.weight").unwrap().data());
    let views: Vec<(String, TensorView<'_>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let data = match name.as_str() {
                "head.weight" => head.as_slice(),
                "embed.weight" => embed.as_slice(),
                _ => view.data(),
            };
            let view = TensorView::new(view.dtype(), view.shape().to_vec(), data).unwrap();
            (name, view)
        })
        .collect();
    let file = safetensors::serialize(views, None).unwrap();
    let json = serde_json::Value::Object(config.to_json()).to_string();
    Model::new(&Checkpoint::from_bytes(json.as_bytes(), file).unwrap())
}

/// Eight times as large.
fn larger(embed: &[u8]) -> Vec<u8> {
    let values = embed.as_chunks().0.iter().map(|b| bf16::from_f32(bf16::from_le_bytes(*b).to_f32() * 8.0));
    values.flat_map(bf16::to_le_bytes).collect()
}

/// Row `t` is the embedding of token `t - 1`, for logits of a standard deviation of about one.
fn pointed_head(embed: &[u8], hidden: usize) -> Vec<u8> {
    let scale = 1.0 / (0.7 * (hidden as f32).sqrt());
    let mut rows: Vec<&[u8]> = embed.chunks(2 * hidden).collect();
    rows.rotate_right(1);
    let values = rows.concat();
    let scaled =
        values.as_chunks().0.iter().map(|b| bf16::from_f32(bf16::from_le_bytes(*b).to_f32() * scale));
    scaled.flat_map(bf16::to_le_bytes).collect()
}

/// Prompts of the built-in model's tasks: what stands before the first answer. Reduced: without a context.
pub(crate) fn task_prompts(count: usize, reduced: bool) -> Vec<Vec<u32>> {
    const KINDS: [Kind; 8] = [
        Kind::Walk,
        Kind::Needle,
        Kind::Recall,
        Kind::Trail,
        Kind::Unknown,
        Kind::Choice,
        Kind::Chat,
        Kind::Topic,
    ];
    let lexicon = Lexicon::load().unwrap();
    let one = |index: usize| {
        let kind = if reduced { Kind::Chat } else { KINDS[index % KINDS.len()] };
        let shape = Shape { kind, ctx: 150 + 40 * (index % 14), rounds: 1, thinking: index % 3 == 1 };
        let item = item(&lexicon, shape, 7, index as u64);
        let end = item.conv.spans.first().map_or(item.conv.ids.len(), |span| span.range.start);
        item.conv.ids[..end.min(POSITIONS - 64)].iter().map(|&id| u32::from(id)).collect()
    };
    (0..count).map(one).collect()
}

/// Random tokens: prompts around the borders of window, rows and blocks.
pub(crate) fn random_prompts(model: &Model, count: usize, reduced: bool) -> Vec<Vec<u32>> {
    const LENGTHS: [usize; 8] = [3, 127, 129, 200, 255, 257, 300, 520];
    let one = |session: usize| {
        let counter = Counter::new(5, &format!("prompt {session}"));
        let len = if reduced { 8 + 3 * (session % 5) } else { LENGTHS[session % LENGTHS.len()] };
        let token =
            |i: usize| u32::try_from(counter.bits(i as u64) % model.config.vocab_size as u64).unwrap();
        (0..len).map(token).collect()
    };
    (0..count).map(one).collect()
}
