//! `flashlane op` as a user runs it: every operation against the oracle over the same file, and what it says of a wrong one.
#![allow(clippy::unwrap_used)] // A test may panic.

mod gpu;

use std::path::PathBuf;
use std::process::{Command, Output};

use flashlane::format::nvfp4;
use flashlane_server::op::tensors::{self, Dtype, Tensor, Tensors};

/// The binary under test: this build's, or the one that `FLASHLANE_BIN` names where this test was built elsewhere.
fn flashlane() -> Command {
    let built = || env!("CARGO_BIN_EXE_flashlane").into();
    Command::new(std::env::var_os("FLASHLANE_BIN").unwrap_or_else(built))
}

struct Call {
    folder: tempfile::TempDir,
    name: &'static str,
    params: Vec<&'static str>,
}

impl Call {
    fn new(name: &'static str, params: &[&'static str], given: &[(&str, Tensor)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let all: Tensors = given.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
        tensors::write(&folder.path().join("x.safetensors"), &all).unwrap();
        Self { folder, name, params: params.to_vec() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn output(&self, device: &str) -> Output {
        let mut command = flashlane();
        command.args(["op", self.name, "--device", device, "--in"]).arg(self.path("x.safetensors"));
        command.arg("--out").arg(self.path("y.safetensors"));
        command.args(self.params.iter().flat_map(|p| ["--param", p]));
        command.output().unwrap()
    }

    fn run(&self, device: &str) -> Tensors {
        let output = self.output(device);
        assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        tensors::read(&self.path("y.safetensors")).unwrap()
    }

    fn refused(&self) -> String {
        let output = self.output("cpu");
        assert!(!output.status.success(), "{} was not refused", self.name);
        String::from_utf8(output.stderr).unwrap()
    }

    /// The CPU's results, which are near the oracle's: integers equal, numbers within `bound` of their size.
    fn agrees(&self, bound: f32) -> Tensors {
        let (found, want) = (self.run("cpu"), self.run("reference"));
        assert!(!found.is_empty() && found.keys().eq(want.keys()));
        for (name, found) in &found {
            let want = &want[name];
            assert_eq!((&found.shape, found.dtype), (&want.shape, want.dtype), "{name}");
            if found.dtype == Dtype::I32 {
                assert_eq!(found.elements::<i32>(), want.elements::<i32>(), "{name}");
                continue;
            }
            let (found, want) = (found.floats(), want.floats());
            assert!(found.iter().any(|v| *v != 0.0), "{name} is all zeros");
            for (i, (a, b)) in found.iter().zip(&want).enumerate() {
                let near = (a - b).abs() <= bound * (1.0 + b.abs());
                assert!(near || (a.is_nan() && b.is_nan()), "{name}[{i}]: {a}, the oracle says {b}");
            }
        }
        found
    }
}

fn real(shape: &[usize], seed: u64) -> Tensor {
    let mut random = fastrand::Rng::with_seed(seed);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| 2.0 * random.f32() - 1.0).collect();
    Tensor::new(Dtype::F32, shape, &values)
}

fn bf16(shape: &[usize], seed: u64) -> Tensor {
    let values: Vec<half::bf16> =
        real(shape, seed).floats().iter().map(|v| half::bf16::from_f32(*v)).collect();
    Tensor::new(Dtype::BF16, shape, &values)
}

fn ints(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::new(Dtype::I32, shape, values)
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(Dtype::F32, shape, values)
}

#[test]
fn rmsnorm_by_hand_and_in_bf16() {
    // mean(9, 16) = 12.5; 3 / sqrt(12.5) * 2 and 4 / sqrt(12.5) * 0.5.
    let given = [("x", floats(&[1, 2], &[3.0, 4.0])), ("weight", floats(&[2], &[2.0, 0.5]))];
    let out = Call::new("rmsnorm", &[], &given).agrees(1e-6)["out"].floats();
    assert!((out[0] - 1.697_056).abs() < 1e-6 && (out[1] - 0.565_685).abs() < 1e-6, "{out:?}");
    let given = [("x", bf16(&[3, 64], 1)), ("weight", real(&[64], 2))];
    assert_eq!(Call::new("rmsnorm", &["eps=1e-3"], &given).agrees(0.01)["out"].dtype, Dtype::BF16);
}

#[test]
fn linear_with_weights_as_numbers_and_as_nvfp4() {
    let (x, weight) = (real(&[3, 128], 3), real(&[32, 128], 4));
    Call::new("linear", &[], &[("x", x.clone()), ("weight", weight.clone())]).agrees(1e-5);
    Call::new("linear", &[], &[("x", x.clone()), ("weight", bf16(&[32, 128], 4))]).agrees(1e-5);
    let q = Call::new("nvfp4_quantize", &[], &[("x", weight)]).run("cpu");
    let plain = Call::new("nvfp4_dequantize", &[], &["codes", "scales", "scale2"].map(|n| (n, q[n].clone())))
        .run("cpu");
    let coded = [("x", x.clone()), ("weight", q["codes"].clone()), ("weight.scales", q["scales"].clone())];
    let coded = [&coded[..], &[("weight.scale2", q["scale2"].clone())]].concat();
    let coded = Call::new("linear", &[], &coded).agrees(1e-5);
    let plain = Call::new("linear", &[], &[("x", x), ("weight", plain["out"].clone())]).run("reference");
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
    assert!(coded["out"].floats().iter().zip(&plain["out"].floats()).all(near));
}

#[test]
fn nvfp4_is_the_formats_definition() {
    let x = real(&[4, 32], 5);
    let found = Call::new("nvfp4_quantize", &[], &[("x", x.clone())]).run("cpu");
    let values = x.floats();
    let amax = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let want = nvfp4::quantize(&values, nvfp4::scale2_for(amax)).unwrap();
    assert_eq!((&found["codes"].bytes, &found["scales"].bytes), (&want.codes, &want.scales));
    let back =
        Call::new("nvfp4_dequantize", &[], &["codes", "scales", "scale2"].map(|n| (n, found[n].clone())))
            .run("cpu");
    // The coarsest step of e2m1 is 2 of 6, half of it is a sixth of the block's largest.
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= amax / 6.0 + 1e-3;
    assert!(back["out"].floats().iter().zip(&values).all(near));
}

#[test]
fn query_rotates_by_position() {
    let angle = |i: usize| (i / 64) as f32 * 0.1 + (i % 64 / 2) as f32 * 0.01;
    let rope: Vec<f32> =
        (0..8 * 64).map(|i| if i % 2 == 0 { angle(i).cos() } else { angle(i).sin() }).collect();
    let given = [
        ("q", real(&[2, 3, 512], 6)),
        ("rope", floats(&[8, 32, 2], &rope)),
        ("position", ints(&[2], &[5, 0])),
    ];
    Call::new("query", &[], &given).agrees(1e-5);
}

#[test]
fn index_logits_and_topk_choose_visible_rows() {
    for bits in ["bits=16", "bits=8", "bits=4"] {
        let given =
            [("q", real(&[2, 8, 128], 7)), ("keys", real(&[128, 128], 8)), ("weights", real(&[2, 8], 9))];
        Call::new("index_logits", &[bits], &given).agrees(1e-4);
        // Token 0 sees (43 + 1) / 4 rows, token 1 all.
        let some = [&given[..], &[("position", ints(&[2], &[43, 511]))]].concat();
        let logits = Call::new("index_logits", &[bits], &some).agrees(1e-4)["logits"].floats();
        assert!(logits.iter().enumerate().all(|(i, v)| v.is_nan() == (11..128).contains(&i)));
    }
    let given = [("logits", floats(&[1, 6], &[0.5, 3.0, f32::NAN, 3.0, -1.0, 3.0]))];
    let selected = Call::new("topk", &["k=2"], &given).agrees(0.0)["selected"].elements::<i32>();
    assert_eq!(selected, [1, 3]);
}

#[test]
fn router_and_experts_over_one_files_names() {
    let routed = Call::new("router", &["k=2"], &[("logits", real(&[3, 4], 10)), ("bias", real(&[4], 11))])
        .agrees(1e-5);
    let (ids, weights) = (routed["ids"].clone(), routed["weights"].clone());
    let given = [
        ("x", real(&[3, 64], 12)),
        ("ids", ids.clone()),
        ("weights", weights),
        ("weight", real(&[4, 64, 64], 13)),
    ];
    let h = Call::new("experts_up", &["limit=10"], &given).agrees(1e-4)["h"].clone();
    assert_eq!(h.shape, [3, 2, 32]);
    let given = [("h", h), ("ids", ids), ("weight", real(&[4, 64, 32], 14)), ("shared", real(&[3, 64], 15))];
    let whole = Call::new("experts_down", &[], &given).agrees(1e-4);
    let absent = Call::new("experts_down", &[], &given[..3]).agrees(1e-4);
    assert_ne!(whole, absent);
}

#[test]
fn sample_is_greedy_unless_told_otherwise_and_hyper_post_mixes() {
    let logits = floats(&[2, 3], &[0.0, 2.0, 1.0, f32::NAN, 0.0, 0.0]);
    let found = Call::new("sample", &[], &[("logits", logits)]).run("reference");
    assert_eq!(
        (found["token"].elements::<i32>(), found["status"].elements::<i32>()),
        (vec![1, -1], vec![0, 1])
    );
    let drawn = [
        ("logits", real(&[4, 50], 16)),
        ("temperature", floats(&[4], &[1.0; 4])),
        ("position", ints(&[4], &[1, 2, 3, 4])),
    ];
    let token = Call::new("sample", &[], &drawn).agrees_exactly("token");
    assert!(token.iter().any(|t| *t != token[0]), "{token:?}");
    let given = [
        ("streams", real(&[2, 4, 32], 17)),
        ("y", real(&[2, 32], 18)),
        ("post", real(&[2, 4], 19)),
        ("comb", real(&[2, 4, 4], 20)),
    ];
    Call::new("hyper_post", &[], &given).agrees(1e-5);
}

impl Call {
    fn agrees_exactly(&self, name: &str) -> Vec<i32> {
        let (found, want) = (self.run("cpu"), self.run("reference"));
        assert_eq!(found[name], want[name]);
        found[name].elements()
    }
}

#[test]
fn a_wrong_file_gets_a_sentence() {
    let x = real(&[2, 64], 1);
    let says = |name, params: &[&'static str], given: &[(&str, Tensor)], words: &str| {
        let found = Call::new(name, params, given).refused();
        assert!(found.contains(words), "expected {words:?}, found {found:?}");
    };
    says("rmsnorm", &[], &[("x", x.clone())], "tensor weight is missing: rmsnorm needs F32 [width]");
    let short = [("x", x.clone()), ("weight", real(&[63], 2))];
    says("rmsnorm", &[], &short, "tensor weight: dimension width must be 64, as tensor x has, found 63");
    let flat = [("x", real(&[64], 1)), ("weight", real(&[64], 2))];
    says("rmsnorm", &[], &flat, "tensor x: expected 2 dimensions [rows, width], found [64]");
    let typed = [("x", ints(&[1, 2], &[1, 2])), ("weight", real(&[2], 2))];
    says("rmsnorm", &[], &typed, "tensor x: expected BF16 or F32, found I32");
    says("rmsnorm", &[], &[("y", x.clone())], "tensor y: rmsnorm takes x, weight");
    says("topk", &[], &[("logits", x.clone())], "topk needs --param k=");
    says("topk", &["k=-1"], &[("logits", x.clone())], "--param k: expected a whole number from 1, found -1");
    says("topk", &["n=1"], &[("logits", x.clone())], "--param n: topk takes k");
    let keys = [("q", real(&[1, 8, 128], 1)), ("keys", real(&[65, 128], 2)), ("weights", real(&[1, 8], 3))];
    says(
        "index_logits",
        &["bits=8"],
        &keys,
        "tensor keys: dimension 64*pages must be a multiple of 64, found 65",
    );
    says("attention", &[], &[("q", x.clone())], "is not covered by flashlane op");
    says("nothing", &[], &[("q", x.clone())], "flashlane op --list names them");
    says("nvfp4_quantize", &[], &[("x", real(&[2, 24], 1))], "cols must be a multiple of 16, found 24");
    let codes = Tensor::new(Dtype::U8, &[4, 32], &[0u8; 128]);
    says("linear", &[], &[("x", x.clone()), ("weight", codes)], "tensor weight.scales is missing");
}

#[test]
fn help_teaches_every_operation_in_the_list() {
    let text = |args: &[&str]| {
        let output = flashlane().arg("op").args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let list = text(&["--list"]);
    let names: Vec<&str> =
        list.lines().filter_map(|l| l.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert_eq!(names.len(), 12, "{list}");
    for name in names {
        let help = text(&[name, "--help"]);
        assert!(help.contains(&format!("flashlane op {name} --in x.safetensors")), "{help}");
    }
}
