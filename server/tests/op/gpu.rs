//! Every operation of `flashlane op` on a GPU against the CPU, over the same file.
//!
//! Integers are equal. A number may be off by one rounding to its type, and by `sum`: the first-order bound of two f32 sums of
//! the same terms in any order, 2 n eps times the sum of their magnitudes, for these shapes and values of magnitude 1 at most.

use super::*;

/// Unit roundoff of f32.
const EPS: f32 = 1.0 / (1u32 << 24) as f32;

/// Whether there is a GPU and a build for it; its absence fails where `FLASHLANE_GPU=required`.
fn gpu() -> bool {
    #[cfg(feature = "cuda")]
    let found = flashlane::cuda::kernels_built() && flashlane::cuda::device_count() > 0;
    #[cfg(not(feature = "cuda"))]
    let found = false;
    let required = std::env::var("FLASHLANE_GPU").is_ok_and(|v| v == "required");
    assert!(found || !required, "FLASHLANE_GPU=required, and there is no GPU, or this build has no kernels");
    if !found {
        eprintln!("skipped: there is no GPU, or this build has no kernels");
    }
    found
}

impl Call {
    /// The GPU's results, which are the CPU's within `sum` and one rounding.
    fn agrees_on_a_gpu(&self, sum: f32) -> Tensors {
        let (found, want) = (self.run("cuda:0"), self.run("cpu"));
        assert!(!found.is_empty() && found.keys().eq(want.keys()), "{}: {:?}", self.name, found.keys());
        for (name, found) in &found {
            let (want, label) = (&want[name], format!("{} {name}", self.name));
            assert_eq!((&found.shape, found.dtype), (&want.shape, want.dtype), "{label}");
            if found.dtype == Dtype::I32 {
                assert_eq!(found.elements::<i32>(), want.elements::<i32>(), "{label}");
                continue;
            }
            let step = if found.dtype == Dtype::BF16 { 1.0 / 128.0 } else { 2.0 * EPS };
            assert!(found.floats().iter().any(|v| *v != 0.0), "{label} is all zeros");
            for (i, (a, b)) in found.floats().iter().zip(&want.floats()).enumerate() {
                let near = (a - b).abs() <= sum + step * (b.abs() + sum);
                assert!(near || (a.is_nan() && b.is_nan()), "{label}[{i}]: {a} on the GPU, {b} on the CPU");
            }
        }
        found
    }
}

/// The bound on `n` terms of magnitude `largest`, computed twice.
fn sum(n: usize, largest: f32) -> f32 {
    let n = n as f32;
    2.0 * n * EPS * n * largest
}

#[test]
fn norms_products_and_rotations() {
    if !gpu() {
        return;
    }
    let given = [("x", bf16(&[3, 64], 1)), ("weight", real(&[64], 2))];
    // The mean's relative error, on values that a norm brings to 64^(1/2) at most.
    Call::new("rmsnorm", &["eps=1e-3"], &given).agrees_on_a_gpu(2.0 * 68.0 * EPS * 8.0);
    let x = bf16(&[3, 128], 3);
    let given = [("x", x.clone()), ("weight", bf16(&[32, 128], 4))];
    Call::new("linear", &[], &given).agrees_on_a_gpu(sum(128, 1.0));
    let q = Call::new("nvfp4_quantize", &[], &[("x", real(&[32, 128], 4))]).run("cpu");
    let coded = [("x", x), ("weight", q["codes"].clone()), ("weight.scales", q["scales"].clone())];
    let coded = [&coded[..], &[("weight.scale2", q["scale2"].clone())]].concat();
    Call::new("linear", &[], &coded).agrees_on_a_gpu(sum(128, 1.0));
    let angle = |i: usize| (i / 64) as f32 * 0.1 + (i % 64 / 2) as f32 * 0.01;
    let rope: Vec<f32> =
        (0..8 * 64).map(|i| if i % 2 == 0 { angle(i).cos() } else { angle(i).sin() }).collect();
    let given = [
        ("q", bf16(&[2, 3, 512], 6)),
        ("rope", floats(&[8, 32, 2], &rope)),
        ("position", ints(&[2], &[5, 0])),
    ];
    // As for the norm, twice for a pair; the values of a head are below 3 here.
    Call::new("query", &[], &given).agrees_on_a_gpu(2.0 * 2.0 * 520.0 * EPS * 3.0);
    let given = [
        ("streams", bf16(&[2, 4, 32], 17)),
        ("y", bf16(&[2, 32], 18)),
        ("post", real(&[2, 4], 19)),
        ("comb", real(&[2, 4, 4], 20)),
    ];
    Call::new("hyper_post", &[], &given).agrees_on_a_gpu(sum(5, 1.0));
}

#[test]
fn scores_and_choices() {
    if !gpu() {
        return;
    }
    for bits in ["bits=16", "bits=8", "bits=4"] {
        let given = [
            ("q", real(&[2, 8, 128], 7)),
            ("keys", real(&[128, 128], 8)),
            ("weights", real(&[2, 8], 9)),
            ("position", ints(&[2], &[43, 511])),
        ];
        // Eight heads, each a sum of 128 terms, scaled by 1 / 32; a stored element may be a little above 1.
        Call::new("index_logits", &[bits], &given).agrees_on_a_gpu(8.0 * sum(128, 1.3) / 32.0);
    }
    let given = [("logits", floats(&[1, 6], &[0.5, 3.0, f32::NAN, 3.0, -1.0, 3.0]))];
    let selected = Call::new("topk", &["k=2"], &given).agrees_on_a_gpu(0.0)["selected"].elements::<i32>();
    assert_eq!(selected, [1, 3]);
    let drawn = [
        ("logits", real(&[4, 50], 16)),
        ("temperature", floats(&[4], &[1.0; 4])),
        ("position", ints(&[4], &[1, 2, 3, 4])),
    ];
    Call::new("sample", &[], &drawn).agrees_on_a_gpu(0.0);
    let failed = floats(&[2, 3], &[0.0, 2.0, 1.0, f32::NAN, 0.0, 0.0]);
    Call::new("sample", &[], &[("logits", failed)]).agrees_on_a_gpu(0.0);
}

#[test]
fn routed_experts() {
    if !gpu() {
        return;
    }
    let routed = Call::new("router", &["k=2"], &[("logits", real(&[3, 4], 10)), ("bias", real(&[4], 11))])
        .agrees_on_a_gpu(16.0 * EPS);
    let (ids, weights) = (routed["ids"].clone(), routed["weights"].clone());
    let given = [
        ("x", bf16(&[3, 64], 12)),
        ("ids", ids.clone()),
        ("weights", weights),
        ("weight", bf16(&[4, 64, 64], 13)),
    ];
    // Gate and up are below 64 each, and their errors are multiplied by the other one and by a weight below 1.5.
    let up = 1.5 * 2.0 * sum(64, 1.0) * 10.0;
    let h = Call::new("experts_up", &["limit=10"], &given).agrees_on_a_gpu(up)["h"].clone();
    let largest = h.floats().iter().fold(0f32, |m, v| m.max(v.abs()));
    let given = [("h", h), ("ids", ids), ("weight", bf16(&[4, 64, 32], 14)), ("shared", bf16(&[3, 64], 15))];
    Call::new("experts_down", &[], &given).agrees_on_a_gpu(sum(65, largest.max(1.0)));
    Call::new("experts_down", &[], &given[..3]).agrees_on_a_gpu(sum(65, largest.max(1.0)));
}

/// What no kernel of a step does is refused in words.
#[test]
fn what_a_gpu_does_not_run_is_refused() {
    if !gpu() {
        return;
    }
    let refused = |name, given: &[(&str, Tensor)]| {
        let output = Call::new(name, &[], given).output("cuda:0");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let words = refused("rmsnorm", &[("x", real(&[3, 64], 1)), ("weight", real(&[64], 2))]);
    assert!(words.contains("activations must be BF16 on a GPU, found F32"), "{words}");
    let words = refused("linear", &[("x", bf16(&[3, 64], 1)), ("weight", real(&[8, 64], 2))]);
    assert!(words.contains("tensor weight must be BF16, or U8 codes, on a GPU, found F32"), "{words}");
    let words = refused("nvfp4_quantize", &[("x", real(&[2, 32], 1))]);
    assert!(words.contains("nvfp4_quantize runs on the cpu here"), "{words}");
}
