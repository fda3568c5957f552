use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::Role;
use super::super::synthetic::{self, tiny_config};
use super::*;

const NVFP4_FP8: QuantizeOptions = QuantizeOptions::new(ExpertFormat::Nvfp4, DenseFormat::Fp8);
const MXFP4_BF16: QuantizeOptions = QuantizeOptions::new(ExpertFormat::Mxfp4, DenseFormat::Bf16);

/// A directory with a synthetic checkpoint `in` and a tokenizer beside it.
fn workspace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    synthetic::write(&input, &tiny_config(), 5).unwrap();
    std::fs::write(input.join("tokenizer.json"), "{}").unwrap();
    dir
}

fn convert(dir: &Path, from: &str, to: &str, options: &QuantizeOptions) -> Checkpoint {
    quantize(&dir.join(from), &dir.join(to), options, |_| ControlFlow::Continue(())).unwrap();
    Checkpoint::open(&dir.join(to)).unwrap()
}

fn matrices(checkpoint: &Checkpoint) -> Vec<(&Item, &Matrix)> {
    let matrix = |item| match item {
        &Item { tensor: Tensor::Matrix(ref m), .. } => Some((item, m)),
        _ => None,
    };
    checkpoint.items.iter().filter_map(matrix).collect()
}

fn values_equal(a: &Checkpoint, b: &Checkpoint) -> bool {
    let bits = |c: &Checkpoint| -> Vec<Vec<u32>> {
        matrices(c).iter().map(|(_, m)| m.decode().iter().map(|v| v.to_bits()).collect()).collect()
    };
    bits(a) == bits(b)
}

#[test]
fn each_role_gets_its_format_and_stays_close() {
    let dir = workspace();
    let original = Checkpoint::open(&dir.path().join("in")).unwrap();
    let quantised = convert(dir.path(), "in", "out", &NVFP4_FP8);
    for ((item, a), (_, b)) in matrices(&original).into_iter().zip(matrices(&quantised)) {
        let (expected, bound) = match item.spec.role {
            role if role.is_expert() => (WeightFormat::Nvfp4, 0.02),
            role if role.is_dense() => (WeightFormat::Fp8Block, 0.002),
            Role::HyperFunc => (WeightFormat::F32, 0.0),
            _ => (WeightFormat::Bf16, 0.0),
        };
        let (a, b) = (a.decode(), b.decode());
        let error: f32 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
        let energy: f32 = a.iter().map(|a| a * a).sum();
        assert_eq!(
            item.format(),
            Some(if item.spec.role == Role::HyperFunc { expected } else { WeightFormat::Bf16 })
        );
        assert!(error <= bound * energy, "{}: {error} of {energy}", item.spec.name);
    }
    let report = quantised.inspect();
    assert!(
        report
            .layers
            .iter()
            .all(|l| l.dense == [WeightFormat::Fp8Block] && l.experts == [WeightFormat::Nvfp4])
    );
    let nvfp4 = report.nvfp4.unwrap();
    assert_eq!((nvfp4.matrices, nvfp4.all_power_of_two()), (3 * 4 * 3, false));
}

/// Overwrites the first element of a bf16 tensor of the input.
fn overwrite(dir: &Path, tensor: &str, value: half::bf16) {
    let path = dir.join("in/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let offset = tensors.tensor(tensor).unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn gate_and_up_share_the_second_scale() {
    let dir = workspace();
    overwrite(dir.path(), "layers.1.ffn.experts.2.w3.weight", half::bf16::from_f32(3.0));
    let quantised = convert(dir.path(), "in", "out", &NVFP4_FP8);
    let all = matrices(&quantised);
    let scale2 = |name: &str| {
        let name = format!("layers.1.ffn.experts.{name}.weight");
        all.iter().find(|(i, _)| i.spec.name == name).unwrap().1.parts[0].scale2
    };
    assert_eq!([scale2("2.w1"), scale2("2.w3")], [3.0 / 2688.0; 2]);
    assert!(scale2("2.w2") < 0.5 / 2688.0 && scale2("1.w3") < 0.5 / 2688.0);
}

#[test]
fn mxfp4_becomes_nvfp4_and_back_without_a_changed_bit() {
    let dir = workspace();
    let mx = convert(dir.path(), "in", "mx", &MXFP4_BF16);
    let nv = convert(dir.path(), "mx", "nv", &QuantizeOptions::new(ExpertFormat::Nvfp4, DenseFormat::Bf16));
    let back = convert(dir.path(), "nv", "back", &MXFP4_BF16);
    assert!(values_equal(&mx, &nv));
    let report = nv.inspect().nvfp4.unwrap();
    assert_eq!((report.power_of_two, report.exact_mxfp4), (report.matrices, report.matrices));
    let bytes = |name: &str| std::fs::read(dir.path().join(name).join("model.safetensors")).unwrap();
    assert!(values_equal(&mx, &back) && bytes("mx") == bytes("back"));
}

#[test]
fn what_has_its_format_already_is_copied() {
    let dir = workspace();
    let once = convert(dir.path(), "in", "once", &NVFP4_FP8);
    let twice = convert(dir.path(), "once", "twice", &NVFP4_FP8);
    assert!(values_equal(&once, &twice));
    let bytes = |name: &str| std::fs::read(dir.path().join(name).join("model.safetensors")).unwrap();
    assert!(bytes("once") == bytes("twice"));
}

#[test]
fn shards_hold_the_same_as_one_file() {
    let dir = workspace();
    let one = convert(dir.path(), "in", "one", &NVFP4_FP8);
    let many = convert(dir.path(), "in", "many", &QuantizeOptions { shard_bytes: 100_000, ..NVFP4_FP8 });
    assert!(values_equal(&one, &many));
    let shards = std::fs::read_dir(dir.path().join("many")).unwrap();
    let sizes: Vec<u64> = shards
        .map(|e| e.unwrap())
        .filter(|e| e.path().extension().is_some_and(|x| x == "safetensors"))
        .map(|e| e.metadata().unwrap().len())
        .collect();
    assert!(sizes.len() > 3);
    // One tensor may exceed the limit alone (the largest has 270 KB); two never share a shard beyond it.
    assert!(sizes.iter().all(|s| *s < 300_000), "{sizes:?}");
}

#[test]
fn config_and_companions_are_written() {
    let dir = workspace();
    convert(dir.path(), "in", "out", &NVFP4_FP8);
    let config: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("out/config.json")).unwrap()).unwrap();
    let quantization = &config["quantization_config"];
    assert_eq!(quantization["quant_method"], "fp8");
    assert_eq!(quantization["moe_quant_algo"], "NVFP4");
    assert_eq!(quantization["quantized_layers"]["layers.2.ffn.experts"]["group_size"], 16);
    assert_eq!(quantization["weight_block_size"], json!([128, 128]));
    assert_eq!(config["expert_dtype"], "fp4");
    assert!(dir.path().join("out/tokenizer.json").exists());
    let mode = |name: &str| std::fs::metadata(dir.path().join("out").join(name)).unwrap().permissions();
    assert_eq!(mode("model.safetensors"), mode("config.json"));
}

#[test]
fn progress_covers_every_byte() {
    let dir = workspace();
    let mut seen = Vec::new();
    quantize(&dir.path().join("in"), &dir.path().join("out"), &NVFP4_FP8, |p| {
        seen.push((p.done, p.total));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen.len(), crate::checkpoint::specs(&tiny_config()).len());
    assert!(seen[0].0 == 0 && seen.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 == w[1].1));
    let (done, total) = seen[seen.len() - 1];
    assert!(done < total && total - done < 100_000);
}

/// Names in the workspace.
fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn an_interrupted_conversion_leaves_nothing_that_looks_finished() {
    let dir = workspace();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    let run = |panics| {
        quantize(&input, &output, &QuantizeOptions { shard_bytes: 100_000, ..NVFP4_FP8 }, |p| {
            if p.done * 2 > p.total {
                let names = listing(dir.path());
                let staging = names.iter().find(|n| n.starts_with(".out.incomplete")).unwrap();
                assert!(!listing(&dir.path().join(staging)).is_empty(), "shards were written");
                assert!(Checkpoint::open(&dir.path().join(staging)).is_err());
                assert!(!output.exists());
                if panics {
                    std::panic::resume_unwind(Box::new("interrupted"));
                }
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(|| run(true))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"interrupted"));
    assert_eq!(listing(dir.path()), ["in"]);
    assert!(run(false).unwrap_err().to_string().starts_with("interrupted"));
    assert_eq!(listing(dir.path()), ["in"]);
}

#[test]
fn an_existing_output_and_a_bad_input_are_refused() {
    let dir = workspace();
    let refused =
        quantize(&dir.path().join("in"), &dir.path().join("in"), &NVFP4_FP8, |_| ControlFlow::Continue(()))
            .unwrap_err();
    assert!(refused.to_string().ends_with("in exists already"));
    assert!(
        quantize(
            &dir.path().join("none"),
            &dir.path().join("out"),
            &NVFP4_FP8,
            |_| ControlFlow::Continue(())
        )
        .is_err()
    );
    assert_eq!(listing(dir.path()), ["in"]);
}

#[test]
fn nan_weights_are_refused_and_nothing_remains() {
    let dir = workspace();
    // One that is converted, and one that is copied.
    for name in ["layers.1.attn.wo_b.weight", "embed.weight"] {
        overwrite(dir.path(), name, half::bf16::NAN);
        let refused = quantize(&dir.path().join("in"), &dir.path().join("out"), &NVFP4_FP8, |_| {
            ControlFlow::Continue(())
        })
        .unwrap_err();
        assert_eq!(refused.to_string(), format!("{name}: element 0 is NaN, expected a finite number"));
        assert_eq!(listing(dir.path()), ["in"]);
    }
}
