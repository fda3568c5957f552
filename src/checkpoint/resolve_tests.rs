use std::path::Path;

use super::super::synthetic::{self, tiny_config};
use super::super::{Checkpoint, CheckpointError, TensorProblem, WeightFormat};
use super::*;
use crate::format::{e2m1, ue8m0};

/// Name, type, shape and bytes.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// A checkpoint that a test may spoil.
#[derive(Clone)]
struct Files {
    config: serde_json::Map<String, serde_json::Value>,
    tensors: Vec<Stored>,
}

impl Files {
    fn new() -> Self {
        let config = tiny_config();
        let tensors = specs(&config).into_iter().map(|spec| {
            let (dtype, data) = synthetic::tensor(&config, 1, &spec);
            (spec.name, dtype, spec.shape, data)
        });
        Self { config: config.to_json(), tensors: tensors.collect() }
    }

    fn index(&self, name: &str) -> usize {
        self.tensors.iter().position(|t| t.0 == name).unwrap()
    }

    fn remove(&mut self, name: &str) -> Stored {
        let index = self.index(name);
        self.tensors.remove(index)
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) {
        self.tensors.push((name.to_owned(), dtype, shape.to_vec(), data));
    }

    fn data(&mut self, name: &str) -> &mut Vec<u8> {
        let index = self.index(name);
        &mut self.tensors[index].3
    }

    fn file(tensors: &[Stored]) -> Vec<u8> {
        let views = tensors
            .iter()
            .map(|t| (&t.0, safetensors::tensor::TensorView::new(t.1, t.2.clone(), &t.3).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let config = serde_json::to_vec(&self.config).unwrap();
        Checkpoint::from_bytes(&config, Self::file(&self.tensors))
    }

    /// Writes shards of so many tensors and their index.
    fn write_sharded(&self, dir: &Path, per_shard: usize) {
        std::fs::write(dir.join("config.json"), serde_json::to_vec(&self.config).unwrap()).unwrap();
        let mut map = serde_json::Map::new();
        for (i, shard) in self.tensors.chunks(per_shard).enumerate() {
            let file = format!("model-{i:05}.safetensors");
            std::fs::write(dir.join(&file), Self::file(shard)).unwrap();
            map.extend(shard.iter().map(|t| (t.0.clone(), file.clone().into())));
        }
        let index = serde_json::json!({"metadata": {}, "weight_map": map});
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

fn problems(files: &Files) -> Vec<TensorProblem> {
    match files.open() {
        Err(CheckpointError::Tensors(problems)) => problems,
        other => panic!("expected tensor problems, found {other:?}"),
    }
}

/// Decoded values of every tensor, by name.
fn everything(checkpoint: &Checkpoint) -> Vec<(String, Vec<f32>)> {
    let values = |item: &Item| match &item.tensor {
        Tensor::Matrix(m) => m.decode(),
        Tensor::Vector(v) => v.values.to_vec(),
        Tensor::Ids(t) => t.ids.iter().map(|id| *id as f32).collect(),
    };
    checkpoint.items.iter().map(|i| (i.spec.name.clone(), values(i))).collect()
}

fn matrix<'a>(checkpoint: &'a Checkpoint, name: &str) -> &'a Matrix {
    match &checkpoint.items.iter().find(|i| i.spec.name == name).unwrap().tensor {
        Tensor::Matrix(matrix) => matrix,
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn a_whole_checkpoint_resolves() {
    let checkpoint = Files::new().open().unwrap();
    let wq_b = matrix(&checkpoint, "layers.1.attn.wq_b.weight");
    let counter = synthetic::Counter::new(1, "layers.1.attn.wq_b.weight");
    let expected = half::bf16::from_f64(3f64.sqrt() / 128f64.sqrt() * counter.uniform(5 * 128 + 3));
    assert_eq!(wq_b.decode()[5 * 128 + 3], expected.to_f32());
    assert_eq!((wq_b.rows, wq_b.cols, wq_b.format), (1024, 128, WeightFormat::Bf16));
    let names = |items: &[Item]| items.iter().map(|i| i.spec.clone()).collect::<Vec<_>>();
    assert_eq!(names(&checkpoint.items), specs(&tiny_config()));
}

#[test]
fn stacking_keeps_rows_in_order() {
    let checkpoint = Files::new().open().unwrap();
    let wkv = matrix(&checkpoint, "layers.1.attn.compressor.wkv.weight");
    let wgate = matrix(&checkpoint, "layers.1.attn.compressor.wgate.weight");
    let stacked = Matrix::stack("kvg", &[wkv, wgate]).unwrap();
    let mut rows = vec![0.0; 2 * 128];
    stacked.decode_rows(1023..1025, &mut rows);
    assert_eq!(rows[..128], wkv.decode()[1023 * 128..]);
    assert_eq!(rows[128..], wgate.decode()[..128]);
    let twice = Matrix::stack("twice", &[&stacked, &stacked]).unwrap();
    assert_eq!(twice.decode()[2048 * 128..], stacked.decode()[..]);
    assert!(Matrix::stack("bad", &[wkv, matrix(&checkpoint, "layers.0.attn.wo_a.weight")]).is_none());
    assert!(Matrix::stack("none", &[]).is_none());
}

#[test]
fn missing_misshapen_and_unknown_tensors_are_all_named() {
    let mut files = Files::new();
    files.remove("layers.1.attn.indexer.wq_b.weight");
    let (name, dtype, _, data) = files.remove("layers.2.ffn.gate.weight");
    files.add(&name, dtype, &[128, 4], data);
    files.add("layers.0.attn.wq_c.weight", Dtype::BF16, &[1], vec![0; 2]);
    files.add("layers.9.attn.wkv.weight", Dtype::BF16, &[1], vec![0; 2]);
    let (name, dtype, shape, data) = files.remove("norm.weight");
    assert_eq!((dtype, shape.as_slice(), data.len()), (Dtype::BF16, [128].as_slice(), 256));
    files.add(&name, Dtype::F16, &[128], data);
    let message = files.open().unwrap_err().to_string();
    let expected = "norm.weight: expected type F32 or BF16, found F16; \
         layers.1.attn.indexer.wq_b.weight is missing; expected shape [256, 128]; \
         layers.2.ffn.gate.weight: expected shape [4, 128], found [128, 4]; \
         layers.0.attn.wq_c.weight is not a tensor of this model as config.json describes it; \
         layers.9.attn.wkv.weight is not a tensor of this model as config.json describes it";
    assert_eq!(message, expected);
    for extra in 0..3 {
        files.add(&format!("stray.{extra}"), Dtype::U8, &[0], vec![]);
    }
    assert!(files.open().unwrap_err().to_string().ends_with("; and 3 more"));
}

#[test]
fn a_tensor_of_no_elements_is_none_of_the_model() {
    let mut files = Files::new();
    let norm = files.remove("norm.weight");
    files.add(&norm.0, norm.1, &[0, 128], vec![]);
    let message = files.open().unwrap_err().to_string();
    assert_eq!(message, "norm.weight: expected shape [128], found [0, 128]");
}

#[test]
fn two_spellings_of_one_tensor_are_refused() {
    let mut files = Files::new();
    let head = files.remove("head.weight");
    files.add("lm_head.weight", head.1, &head.2, head.3.clone());
    files.open().unwrap();
    files.add("head.weight", head.1, &head.2, head.3);
    assert!(
        matches!(&problems(&files)[..], [TensorProblem::Duplicate { name, .. }] if name == "head.weight")
    );
}

#[test]
fn values_that_cannot_be_meant_are_refused() {
    let mut files = Files::new();
    files.data("layers.0.ffn.gate.tid2eid")[7 * 16] = 4;
    files.data("norm.weight")[2..4].copy_from_slice(&half::bf16::NAN.to_le_bytes());
    let message = files.open().unwrap_err().to_string();
    let expected = "norm.weight: element 1 is NaN, expected a finite number; \
                    layers.0.ffn.gate.tid2eid: row 7 names expert 4, expected one of 0..4";
    assert_eq!(message, expected);
}

/// hazards.md Q14: ids of a row may repeat; and they may be 32 bits wide.
#[test]
fn q14_hash_tables_may_repeat_ids_and_be_i32() {
    let mut files = Files::new();
    let (name, _, shape, _) = files.remove("layers.0.ffn.gate.tid2eid");
    let ids = vec![3i32; shape[0] * shape[1]];
    files.add(&name, Dtype::I32, &shape, ids.iter().flat_map(|i| i.to_le_bytes()).collect());
    let checkpoint = files.open().unwrap();
    let table = checkpoint.items.iter().find_map(|i| match &i.tensor {
        Tensor::Ids(table) => Some(table.ids.to_vec()),
        _ => None,
    });
    assert_eq!(table, Some(ids));
}

#[test]
fn draft_and_vision_tensors_are_skipped_with_a_line_each() {
    let mut files = Files::new();
    files.add("mtp.0.e_proj.weight", Dtype::BF16, &[2], vec![0; 4]);
    files.add("layers.3.attn.wkv.weight", Dtype::BF16, &[2], vec![0; 4]);
    files.add("vision.patch.weight", Dtype::BF16, &[3], vec![0; 6]);
    let lines: Vec<String> = files.open().unwrap().skipped.iter().map(ToString::to_string).collect();
    let draft = "skipped 2 tensors (8 bytes) of the draft layers (multi-token prediction)";
    assert_eq!(lines, [draft, "skipped 1 tensors (6 bytes) of the vision tower"]);
}

/// Names of `transformers` modules, experts fused.
fn native(files: &Files) -> Files {
    const PAIRS: [(&str, &str); 26] = [
        (".hc_attn_", ".attn_hc."),
        (".hc_ffn_", ".ffn_hc."),
        ("hc_head_", "model.hc_head.hc_"),
        (".attn.indexer.compressor.", ".attn.compressor.indexer."),
        (".attn.indexer.weights_proj", ".attn.compressor.indexer.scorer.weights_proj"),
        (".attn.indexer.wq_b", ".attn.compressor.indexer.q_b_proj"),
        ("indexer.norm", "indexer.kv_norm"),
        ("compressor.norm", "compressor.kv_norm"),
        (".ape", ".position_bias"),
        (".wgate.", ".gate_proj."),
        (".wkv.", ".kv_proj."),
        (".wq_a.", ".q_a_proj."),
        (".wq_b.", ".q_b_proj."),
        (".q_norm.", ".q_a_norm."),
        (".wo_a.", ".o_a_proj."),
        (".wo_b.", ".o_b_proj."),
        (".attn_sink", ".sinks"),
        (".attn.", ".self_attn."),
        (".attn_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".gate.bias", ".gate.e_score_correction_bias"),
        (".w1.", ".gate_proj."),
        (".w3.", ".up_proj."),
        (".w2.", ".down_proj."),
        (".ffn.", ".mlp."),
        ("embed.", "model.embed_tokens."),
    ];
    let mut out = Files { config: files.config.clone(), tensors: Vec::new() };
    let mut fused: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, dtype, shape, data) in &files.tensors {
        let mut native = PAIRS.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        native = if name == "head.weight" { "lm_head.weight".to_owned() } else { native };
        native = if native.starts_with("layers.") { format!("model.{native}") } else { native };
        if let Some((prefix, rest)) = native.split_once(".experts.") {
            let down = rest.ends_with("down_proj.weight");
            let key = format!("{prefix}.experts.{}", if down { "down_proj" } else { "gate_up_proj" });
            let rows = if down { shape[0] } else { 2 * shape[0] };
            fused.entry(key).or_insert_with(|| (vec![4, rows, shape[1]], Vec::new())).1.extend(data);
        } else {
            out.add(&native, *dtype, shape, data.clone());
        }
    }
    for (name, (shape, data)) in fused {
        out.add(&name, Dtype::BF16, &shape, data);
    }
    out
}

#[test]
fn names_of_transformers_and_fused_experts_load_the_same() {
    let mut files = Files::new();
    let native = native(&files);
    assert!(native.tensors.iter().any(|t| t.0 == "model.layers.2.mlp.experts.gate_up_proj"));
    assert!(
        native.tensors.iter().any(|t| t.0 == "model.layers.1.self_attn.compressor.indexer.kv_norm.weight")
    );
    let (a, b) = (everything(&files.open().unwrap()), everything(&native.open().unwrap()));
    assert!(a == b);
    // What `save_pretrained` makes of the norm's name.
    let norm = files.remove("layers.0.attn.kv_norm.weight");
    files.add("model.layers.0.attn.norm.weight", norm.1, &norm.2, norm.3);
    assert!(everything(&files.open().unwrap()) == a);
}

/// An FP4 expert matrix `[128, 128]` whose codes are all 1.0 (code 2), under the given scales.
fn fp4_expert(files: &mut Files, scales: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) {
    files.remove("layers.0.ffn.experts.0.w1.weight");
    let codes = vec![e2m1::pack(2, 2); 128 * 64];
    files.add("layers.0.ffn.experts.0.w1.weight", Dtype::U8, &[128, 64], codes);
    for (suffix, dtype, shape, data) in scales {
        files.add(&format!("layers.0.ffn.experts.0.w1.{suffix}"), *dtype, shape, data.clone());
    }
}

fn first_expert(files: &Files) -> (WeightFormat, f32) {
    let checkpoint = files.open().unwrap();
    let matrix = matrix(&checkpoint, "layers.0.ffn.experts.0.w1.weight");
    let values = matrix.decode();
    assert!(values.iter().all(|v| *v == values[0]));
    (matrix.format, values[0])
}

fn f32_scale(value: f32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

#[test]
fn a_quantised_weight_of_a_wrong_kind_is_one_problem() {
    const EXPERT: &str = "layers.0.ffn.experts.0.w1";
    let scales = || {
        [
            ("weight_scale", Dtype::F8_E4M3, vec![128, 8], vec![0x38; 1024]),
            ("weight_scale_2", Dtype::F32, vec![], f32_scale(1.0)),
        ]
    };
    let with = |scales: &[(&str, Dtype, Vec<usize>, Vec<u8>)]| {
        let mut files = Files::new();
        fp4_expert(&mut files, scales);
        files
    };
    let missing = |suffix: &str, shape: &[usize]| {
        [TensorProblem::Missing { name: format!("{EXPERT}.{suffix}"), shape: shape.to_vec() }]
    };
    let [first, second] = scales();
    assert_eq!(problems(&with(&[second])), missing("weight_scale", &[128, 8]));
    assert_eq!(problems(&with(&[first])), missing("weight_scale_2", &[]));
    assert_eq!(problems(&with(&[])), missing("scale", &[128, 4]));
    let mut other = with(&scales());
    let at = other.index(&format!("{EXPERT}.weight"));
    other.tensors[at].1 = Dtype::F8_E5M2;
    let found = problems(&other);
    assert!(
        matches!(&found[..], [TensorProblem::Dtype { name, .. }] if name.ends_with("w1.weight")),
        "{found:?}"
    );
}

/// hazards.md Q05 and Q07: ModelOpt stores a multiplier, compressed-tensors a divisor.
#[test]
fn q05_second_level_scales_multiply_or_divide_by_their_flavour() {
    let one = || ("weight_scale", Dtype::F8_E4M3, vec![128, 8], vec![0x38; 1024]);
    for (suffix, stored, expected) in
        [("weight_scale_2", 3.7, 3.7), ("weight_global_scale", 0.5, 2.0), ("weight_scale_2", 0.5, 0.5)]
    {
        let mut files = Files::new();
        fp4_expert(&mut files, &[one(), (suffix, Dtype::F32, vec![], f32_scale(stored))]);
        assert_eq!(first_expert(&files), (WeightFormat::Nvfp4, expected));
    }
    let mut files = Files::new();
    fp4_expert(&mut files, &[one(), ("weight_global_scale", Dtype::F32, vec![1], f32_scale(0.0))]);
    assert!(matches!(&problems(&files)[..], [TensorProblem::Scale { .. }]));
}

#[test]
fn the_format_follows_from_what_lies_beside_the_weight() {
    let mut files = Files::new();
    fp4_expert(&mut files, &[("scale", Dtype::F8_E8M0, vec![128, 4], vec![129; 512])]);
    assert_eq!(first_expert(&files), (WeightFormat::Mxfp4, 4.0));
    let mut files = Files::new();
    fp4_expert(&mut files, &[]);
    let message = files.open().unwrap_err().to_string();
    assert_eq!(message, "layers.0.ffn.experts.0.w1.scale is missing; expected shape [128, 4]");
}

#[test]
fn fp8_blocks_read_both_scale_types() {
    for (suffix, dtype, scale) in
        [("scale", Dtype::F8_E8M0, vec![126u8; 1]), ("weight_scale_inv", Dtype::F32, f32_scale(0.3))]
    {
        let mut files = Files::new();
        files.remove("layers.2.attn.wq_a.weight");
        files.add("layers.2.attn.wq_a.weight", Dtype::F8_E4M3, &[128, 128], vec![0x40; 128 * 128]);
        files.add(&format!("layers.2.attn.wq_a.{suffix}"), dtype, &[1, 1], scale);
        let values = matrix(&files.open().unwrap(), "layers.2.attn.wq_a.weight").decode();
        assert!(values.iter().all(|v| *v == if dtype == Dtype::F32 { 0.6 } else { 1.0 }));
    }
}

#[test]
fn nan_scales_are_refused_in_every_format() {
    let mut files = Files::new();
    let mut scales = vec![127; 512];
    scales[17] = ue8m0::NAN;
    fp4_expert(&mut files, &[("scale", Dtype::F8_E8M0, vec![128, 4], scales)]);
    files.remove("layers.2.attn.wq_a.weight");
    files.add("layers.2.attn.wq_a.weight", Dtype::F8_E4M3, &[128, 128], vec![0; 128 * 128]);
    files.add("layers.2.attn.wq_a.scale", Dtype::F32, &[1, 1], f32_scale(f32::NAN));
    let message = files.open().unwrap_err().to_string();
    let expected = "layers.0.ffn.experts.0.w1.scale: scale 17 is not a finite number from 0 up; \
                    layers.2.attn.wq_a.scale: scale 0 is not a finite number from 0 up";
    assert_eq!(message, expected);
}

#[test]
fn tensors_that_are_never_quantised_must_not_be() {
    let mut files = Files::new();
    files.remove("layers.2.ffn.gate.weight");
    files.add("layers.2.ffn.gate.weight", Dtype::F8_E4M3, &[4, 128], vec![0; 512]);
    let message = files.open().unwrap_err().to_string();
    assert_eq!(message, "layers.2.ffn.gate.weight: expected type F32 or BF16, found F8_E4M3");
}

#[path = "resolve_directory_tests.rs"]
mod directories;
