//! The whole model as its steps run it, against truth from outside: logits, chosen experts and selected rows of
//! `transformers`' implementation with the same weights (tools/golden), which neither crate here had a part in.

use std::path::Path;

use flashlane::cache::{Caches, Owner, Sequence};
use flashlane::checkpoint::{Checkpoint, ModelConfig, synthetic};
use flashlane::engine::inputs::{Segment, Tokens, fill};
use flashlane::engine::{Device, HostDevice, Prepared, SamplingParams, Wanted, prepare};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::model::{CacheLayout, CacheSize, ModelWeights, StepShape, load};
use flashlane::ops::Dtype;
use flashlane::step::Numerics;
use flashlane::{cpu, reference};
use safetensors::SafeTensors;

/// No rounding anywhere: what `transformers` computes.
const OFF: Numerics =
    Numerics { activation: Dtype::F32, trained: false, kv: KvFormat::F32, index: IndexFormat::F32 };

/// The roundings of training: bf16 activations, FP8 rows, FP4 index keys and queries.
const TRAINED: Numerics =
    Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index: IndexFormat::Fp4 };

/// One sequence fed through prefill and decode steps by hand.
struct Run {
    device: Box<dyn Device>,
    caches: Caches,
    sequence: Sequence,
    len: usize,
    vocab: usize,
}

/// What a run shows of each token.
#[derive(Debug, Default)]
struct Shown {
    logits: Vec<Vec<f32>>,
    /// By layer, then token.
    experts: Vec<Vec<Vec<i32>>>,
    selected: Vec<Vec<Vec<i32>>>,
}

enum Executor {
    Reference,
    Cpu,
}

impl Run {
    fn new(checkpoint: &Checkpoint, numerics: Numerics, executor: &Executor) -> Self {
        let (positions, config) = (1024, &checkpoint.config);
        let (weights, registry) = ModelWeights::new(config, positions);
        let size = CacheSize { window_pages: 12, blocks: 8, slots: 3 };
        let layout = CacheLayout::new(&weights, numerics, size);
        let prefill = StepShape { samples: 256, ..StepShape::prefill(positions) };
        let steps: Vec<Prepared> = [StepShape::decode(1, positions), prefill]
            .into_iter()
            .map(|shape| prepare(&weights, &layout, numerics, shape).unwrap())
            .collect();
        let loaded = load(&registry, checkpoint).unwrap();
        let device: Box<dyn Device> = match executor {
            Executor::Reference => {
                let weights = reference::Weights::from_loaded(&loaded);
                Box::new(HostDevice::new(&layout, steps, weights, reference::run_step))
            }
            Executor::Cpu => {
                let weights = loaded.into_iter().collect::<cpu::Weights>();
                Box::new(HostDevice::new(&layout, steps, weights, cpu::serial::run_step))
            }
        };
        let mut caches = Caches::new(size);
        // Someone else holds the first pages, so that ids and numbers differ.
        let other = Sequence::admit(&mut caches, Owner(9), 300).unwrap();
        assert_eq!(other.blocks.len(), 2);
        let sequence = Sequence::admit(&mut caches, Owner(1), 1024).unwrap();
        Self { device, caches, sequence, len: 0, vocab: config.vocab_size }
    }

    /// Runs `tokens` through one step (prefill if `step` is 1) and collects what it shows.
    fn feed(&mut self, step: usize, tokens: &[u32], shown: &mut Shown) {
        let to = self.len + tokens.len();
        self.sequence.extend_window(&mut self.caches, self.len, to).unwrap();
        let greedy = SamplingParams::default();
        let given = Tokens::Given(tokens);
        let segment =
            Segment { sequence: &self.sequence, start: self.len, tokens: given, sample: Some(&greedy) };
        let steps = self.device.steps();
        let model = &steps[step].step;
        let memory = self.device.io(step, 0);
        fill(model, memory, &[segment]);
        for (row, sample) in (0i32..).zip(memory.host_mut::<i32>(&model.io.sample_rows)).take(tokens.len()) {
            *sample = row;
        }
        self.device.launch(step, 0, &Wanted::all(model)).unwrap();
        self.device.wait(step, 0).unwrap();
        let memory = self.device.io(step, 0);
        let logits = memory.host::<f32>(&model.io.logits);
        shown.logits.extend(logits.chunks(self.vocab).take(tokens.len()).map(<[f32]>::to_vec));
        let rows = model.shape.rows();
        let collect = |value, into: &mut Vec<Vec<i32>>| {
            let all = memory.host::<i32>(value);
            into.extend(all.chunks(all.len() / rows).take(tokens.len()).map(<[i32]>::to_vec));
        };
        shown.experts.resize_with(model.io.experts.len(), Vec::new);
        shown.selected.resize_with(model.io.selected.len(), Vec::new);
        for (value, into) in model.io.experts.iter().zip(&mut shown.experts) {
            collect(value, into);
        }
        for (value, into) in model.io.selected.iter().zip(&mut shown.selected) {
            if let Some(value) = value {
                collect(value, into);
            }
        }
        self.len = to;
        self.sequence.slide(&mut self.caches, to, 0).unwrap();
        self.caches.settle(0);
    }

    /// Prefill in blocks up to `prefilled`, then one decode step per token.
    fn all(&mut self, tokens: &[u32], prefilled: usize) -> Shown {
        let mut shown = Shown::default();
        for block in tokens[..prefilled].chunks(256) {
            self.feed(1, block, &mut shown);
        }
        for token in &tokens[prefilled..] {
            self.feed(0, std::slice::from_ref(token), &mut shown);
        }
        shown
    }
}

struct Golden {
    checkpoint: Checkpoint,
    bytes: Vec<u8>,
}

impl Golden {
    fn open() -> Self {
        let dir = crate::support::root().join("proptests/golden");
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("tiny_a.json")).unwrap()).unwrap();
        // The same weights as `transformers` saves them (tools/golden/save_pretrained.py), where a directory is named.
        let checkpoint = if let Some(dir) = std::env::var_os("FLASHLANE_GOLDEN_CHECKPOINT") {
            Checkpoint::open(Path::new(&dir)).unwrap()
        } else {
            let (config, _) = ModelConfig::from_json(json["config"].to_string().as_bytes()).unwrap();
            synthetic::checkpoint(&config, json["seed"].as_u64().unwrap()).unwrap()
        };
        Self { checkpoint, bytes: std::fs::read(dir.join("tiny_a.safetensors")).unwrap() }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    fn tokens(&self, prompt: &str) -> Vec<u32> {
        let ids = self.tensors();
        let ids = ids.tensor(&format!("{prompt}.ids")).unwrap();
        bytemuck::allocation::pod_collect_to_vec(ids.data())
    }

    /// Every position within 1e-4 of the largest logit, and the same choices wherever a layer chooses.
    fn check(&self, prompt: &str, shown: &Shown) {
        let tensors = self.tensors();
        let logits: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(
            tensors.tensor(&format!("{prompt}.logits")).unwrap().data(),
        );
        let vocab = self.checkpoint.config.vocab_size;
        assert_eq!(shown.logits.len() * vocab, logits.len());
        for (position, (ours, theirs)) in shown.logits.iter().zip(logits.chunks(vocab)).enumerate() {
            let scale = theirs.iter().fold(0f32, |m, v| m.max(v.abs()));
            let worst = ours.iter().zip(theirs).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(scale > 0.5, "{prompt} {position}: vacuous, largest logit {scale}");
            assert!(worst <= 1e-4 * scale, "{prompt} {position}: logits differ by {worst} of {scale}");
        }
        for name in tensors.names().into_iter().filter(|name| name.starts_with(prompt)) {
            let mut parts = name.split('.').skip(2);
            let layer = parts.next().and_then(|layer| layer.parse::<usize>().ok());
            match (layer, parts.next()) {
                (Some(layer), Some("experts")) => self.same_choices(name, &shown.experts[layer]),
                (Some(layer), Some("rows")) => self.same_choices(name, &shown.selected[layer]),
                _ => {}
            }
        }
    }

    fn same_choices(&self, name: &str, ours: &[Vec<i32>]) {
        let tensors = self.tensors();
        let theirs = tensors.tensor(name).unwrap();
        let k = theirs.shape()[1];
        assert_eq!(ours.len(), theirs.shape()[0], "{name}: tokens that show a choice");
        for (position, (ours, theirs)) in ours.iter().zip(theirs.data().chunks(k)).enumerate() {
            let theirs: Vec<i32> =
                theirs.iter().map(|&id| if id == 255 { -1 } else { i32::from(id) }).collect();
            assert_eq!(*ours, theirs, "{name} at {position}");
        }
    }
}

#[test]
fn the_oracle_matches_transformers_in_prefill_and_decode() {
    let golden = Golden::open();
    let tokens = golden.tokens("short");
    for prefilled in [tokens.len(), 61] {
        let mut run = Run::new(&golden.checkpoint, OFF, &Executor::Reference);
        golden.check("short", &run.all(&tokens, prefilled));
    }
}

#[test]
fn the_cpu_path_matches_transformers_in_prefill_and_decode() {
    let golden = Golden::open();
    for (prompt, prefilled) in [("short", 0), ("long", 641), ("long", 250)] {
        let tokens = golden.tokens(prompt);
        let mut run = Run::new(&golden.checkpoint, OFF, &Executor::Cpu);
        golden.check(prompt, &run.all(&tokens, prefilled));
    }
}

/// On the CPU a token's logits are the same bits whether a prefill block or a decode step computes them.
#[test]
fn prefill_and_decode_give_the_same_bits() {
    let checkpoint = synthetic::checkpoint(&synthetic::tiny_config(), 5).unwrap();
    let tokens: Vec<u32> = (0..300u32).map(|i| i * i % 96).collect();
    for numerics in [OFF, TRAINED] {
        let logits =
            |prefilled| Run::new(&checkpoint, numerics, &Executor::Cpu).all(&tokens, prefilled).logits;
        let whole = logits(tokens.len());
        for prefilled in [0, 127, 256, 259] {
            assert!(whole == logits(prefilled), "{numerics:?}, {prefilled} prefilled");
        }
    }
}

/// With the roundings of training, one that flips changes a choice, and a random model then goes another way; so the oracle
/// and the CPU are compared by the middle of their differences and by the share of equal choices.
#[test]
fn the_cpu_path_is_the_oracle_with_the_roundings_of_training() {
    let checkpoint = synthetic::checkpoint(&synthetic::tiny_config(), 5).unwrap();
    let tokens: Vec<u32> = (0..140u32).map(|i| i * i % 96).collect();
    let run = |executor| Run::new(&checkpoint, TRAINED, &executor).all(&tokens, 133);
    let (oracle, cpu) = (run(Executor::Reference), run(Executor::Cpu));
    let mut errors: Vec<f32> = oracle.logits.iter().zip(&cpu.logits).map(|(a, b)| relative(a, b)).collect();
    errors.sort_by(f32::total_cmp);
    assert!(errors[errors.len() / 2] < 0.02, "the median error is {}", errors[errors.len() / 2]);
    let pairs = oracle.experts.iter().flatten().zip(cpu.experts.iter().flatten());
    let (same, all) = pairs.fold((0, 0), |(same, all), (a, b)| (same + usize::from(a == b), all + 1));
    assert!(20 * same > 19 * all, "{same} of {all} tokens go to the same experts");
}

/// The largest difference over the largest logit.
fn relative(oracle: &[f32], found: &[f32]) -> f32 {
    let scale = oracle.iter().fold(0f32, |m, v| m.max(v.abs()));
    oracle.iter().zip(found).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / scale
}
