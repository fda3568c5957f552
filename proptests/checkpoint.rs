//! Checkpoints: the pinned generator, what `save_pretrained` writes, and files that were tampered with.

use flashlane::checkpoint::{Checkpoint, ModelConfig, Spec, specs, synthetic};
use flashlane::step::Random;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

use crate::support::tampered::{self, Small, judge, small};

const GENERATOR: &str = include_str!("golden/generator.json");
const TINY_A: &str = include_str!("golden/tiny_a.json");
const PRETRAINED_CONFIG: &[u8] = include_bytes!("golden/save_pretrained_config.json");
const NAMES: &str = include_str!("golden/save_pretrained_names.txt");
const NATIVE_NAMES: &str = include_str!("golden/save_pretrained_native_names.txt");

fn tiny_a() -> ModelConfig {
    let golden: Value = serde_json::from_str(TINY_A).unwrap();
    ModelConfig::from_json(golden["config"].to_string().as_bytes()).unwrap().0
}

/// Bytes of one element of a tensor of the inventory, as the synthetic checkpoint stores it.
fn tensor(config: &ModelConfig, specs: &[Spec], pin: &Value) -> (Dtype, Vec<u8>) {
    let name = pin["name"].as_str().unwrap();
    let seed = pin["seed"].as_str().unwrap().parse().unwrap();
    let spec = specs.iter().find(|s| s.name == name).unwrap();
    synthetic::tensor(config, seed, spec)
}

#[test]
fn the_generator_agrees_with_its_python_twin() {
    let golden: Value = serde_json::from_str(GENERATOR).unwrap();
    let (config, pins) = (tiny_a(), golden["values"].as_array().unwrap());
    let specs = specs(&config);
    for pin in pins {
        let (dtype, bytes) = tensor(&config, &specs, pin);
        let i = pin["index"].as_u64().unwrap() as usize;
        let value = match dtype {
            Dtype::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()),
            _ => half::bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        };
        assert_eq!(format!("{dtype:?}"), pin["dtype"].as_str().unwrap());
        assert_eq!(value, pin["value"].as_f64().unwrap() as f32, "{pin}");
    }
    assert!(pins.len() > 100);
    for pin in golden["tid2eid"].as_array().unwrap() {
        let (_, bytes) = tensor(&config, &specs, pin);
        let (row, ids) = (pin["row"].as_u64().unwrap() as usize, pin["ids"].as_array().unwrap());
        for (j, id) in ids.iter().enumerate() {
            let at = 8 * (row * ids.len() + j);
            let found = i64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(found, id.as_i64().unwrap(), "{pin}");
        }
    }
}

/// A file of zeros with the tensors of a listing, `name dtype [shape]` a line.
fn zeros(listing: &str) -> Vec<u8> {
    let tensors: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)> = listing
        .lines()
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let (name, dtype, shape) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            let dtype: Dtype = serde_json::from_value(dtype.into()).unwrap();
            let shape: Vec<usize> = serde_json::from_str(shape).unwrap();
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name, dtype, shape, vec![0; bytes])
        })
        .collect();
    let views = tensors.iter().map(|t| (t.0, TensorView::new(t.1, t.2.clone(), &t.3).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

#[test]
fn what_save_pretrained_writes_loads() {
    for listing in [NAMES, NATIVE_NAMES] {
        let checkpoint = Checkpoint::from_bytes(PRETRAINED_CONFIG, zeros(listing)).unwrap();
        assert_eq!(checkpoint.items.len(), specs(&checkpoint.config).len());
        assert_eq!(checkpoint.config.compress_ratios, tiny_a().compress_ratios);
        assert_eq!(checkpoint.config.num_hash_layers, tiny_a().num_hash_layers);
        assert_eq!(checkpoint.config.yarn, tiny_a().yarn);
    }
}

/// What the fuzz target does with its inputs, on drawn ones.
#[test]
#[ignore = "a million executions take many minutes"]
fn a_million_tampered_checkpoints_are_whole_or_errors() {
    let count: u64 = std::env::var("EXECUTIONS").map_or(1_000_000, |n| n.parse().unwrap());
    let mut random = Random::new(1);
    for _ in 0..count {
        let len = 1 + random.below(24);
        let input: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
        tampered::check(&input);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_the_fuzz_target_gets_is_whole_or_an_error(input in prop::collection::vec(any::<u8>(), 0..40)) {
        tampered::check(&input);
    }

    #[test]
    fn tampered_headers_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let Small { config, file, header } = small();
        let mut file = file.clone();
        for (at, byte) in edits {
            file[at.index(*header)] = byte;
        }
        let _ = judge(config, file);
    }

    /// Digits replaced by digits: the header stays JSON, its shapes and ranges do not stay true.
    #[test]
    fn wrong_numbers_are_errors(at in any::<prop::sample::Index>(), digit in b'0'..=b'9') {
        let Small { config, file, header } = small();
        let offsets: Vec<usize> = (8..*header - 1)
            .filter(|i| file[*i].is_ascii_digit() && matches!(file[i - 1], b'[' | b',' | b'0'..=b'9'))
            .collect();
        let at = offsets[at.index(offsets.len())];
        prop_assume!(file[at] != digit);
        let mut file = file.clone();
        file[at] = digit;
        prop_assert!(judge(config, file).is_err());
    }

    #[test]
    fn truncated_files_are_errors(len in any::<prop::sample::Index>()) {
        let Small { config, file, .. } = small();
        prop_assert!(judge(config, file[..len.index(file.len())].to_vec()).is_err());
    }

    #[test]
    fn tampered_configs_never_panic(at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 0..4), cut in 0usize..4) {
        let Small { config, file, .. } = small();
        let mut config = config.clone();
        let at = at.index(config.len());
        let end = (at + cut).min(config.len());
        config.splice(at..end, bytes);
        let _ = judge(&config, file.clone());
    }
}
