//! The emulator itself, and the element math that kernels share with the host: bit for bit the Rust side's.

use std::sync::Arc;

use flashlane::cuda::{Emulator, Planted, host};
use flashlane::format::{bf16, e2m1, e4m3, ue8m0};
use flashlane::ops::{Op, RmsNorm};
use half::bf16 as Bf16;

use crate::support::cuda::Cuda;
use crate::support::{Case, Draw, Dtype, Value};

/// Equal bits, any NaN being the same NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn every_code_of_every_format_decodes_alike() {
    for code in 0..=255u8 {
        assert!(same(host::e4m3_to_float(code), e4m3::decode(code)), "e4m3 {code}");
        assert!(same(host::ue8m0_to_float(code), ue8m0::decode(code)), "ue8m0 {code}");
        assert!(same(host::ue8m0_reciprocal(code), ue8m0::reciprocal(code)), "reciprocal {code}");
        assert!(same(host::e2m1_to_float(code & 15), e2m1::decode(code & 15)), "e2m1 {code}");
    }
    for code in 0..=u16::MAX {
        assert!(same(host::bf16_to_float(code), Bf16::from_bits(code).to_f32()), "bf16 {code}");
    }
}

/// Every value around every rounding threshold: all bf16 patterns, and their neighbours a hair to either side.
#[test]
fn every_rounding_falls_alike() {
    for high in 0..=u16::MAX {
        for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            assert_eq!(host::float_to_e4m3(x), e4m3::encode(x), "e4m3 of {x:e}");
            assert_eq!(host::float_to_e2m1(x), e2m1::encode(x), "e2m1 of {x:e}");
            assert_eq!(host::e4m3_tile_scale(x), ue8m0::scale_fp8(x.abs()), "fp8 scale of {x:e}");
            assert_eq!(host::e2m1_tile_scale(x), ue8m0::scale_fp4(x.abs()), "fp4 scale of {x:e}");
            let rounded = Bf16::from_bits(host::float_to_bf16(x)).to_f32();
            assert!(same(rounded, bf16::round(x)), "bf16 of {x:e}");
        }
    }
}

fn norm() -> (Case, Value) {
    let (rows, width) = (3, 1024);
    let mut draw = Draw::new(7);
    let mut case = Case::new();
    let x = case.real("x", Dtype::Bf16, &draw.exact(rows * width, 1.0));
    let weight = case.vector("weight", &draw.normals(width, 1.0));
    let out = case.out("out", Dtype::Bf16, rows * width);
    case.op(Op::RmsNorm(RmsNorm { x, weight, out, rows, width, eps: 1e-6 }));
    (case, out)
}

/// A kernel with a barrier taken out gives another answer under some schedule; the whole one under none.
#[test]
fn a_removed_barrier_is_found_by_some_seed() {
    let (case, out) = norm();
    let run = |emulator| {
        let (mut memory, mut resident) = case.memory(0x7f);
        let cuda = Cuda::new("emulator", Arc::new(emulator));
        crate::support::run_once(&cuda, &case, &mut memory, &mut resident);
        case.bytes(out.buffer, &memory, &resident).map(<[u8]>::to_vec)
    };
    let want = run(Emulator::new(0));
    let wrong =
        (0..20).filter(|&seed| run(Emulator::with_planted_fault(seed, Planted::NoBarriers)) != want).count();
    assert!(wrong > 0, "twenty schedules did not show a missing barrier");
    assert!((0..20).all(|seed| run(Emulator::new(seed)) == want));
}

/// What a block leaves where it had a barrier is an error, right as its answer may be.
#[test]
fn sums_over_a_barrier_are_refused() {
    let (case, _) = norm();
    let (mut memory, mut resident) = case.memory(0x7f);
    let emulator = Emulator::with_planted_fault(1, Planted::SumsOverBarrier);
    let executor = Cuda::new("emulator", Arc::new(emulator)).executor(&case).unwrap();
    let found = executor.run_on_host_memory(&case.graph, &case.plan, &mut memory, &mut resident);
    assert!(found.as_ref().is_err_and(|e| e.to_string().contains("writes over a barrier")), "{found:?}");
}
