//! The kernels of `attention` against each other: which of them runs is a matter of how many rows a step has, so no bit may tell.

use std::sync::Arc;

use flashlane::cuda::{Backend, Recorder};
use flashlane::format::kv_row::KvFormat;
use proptest::prelude::*;

use super::{Extra, POSITIONS, Setup};
use crate::support::cuda::{Cuda, device};
use crate::support::{Draw, Dtype, config};

/// Tokens times groups of 16 heads from which on the kernel for many runs (src/cuda/ops/attention.rs).
const TOKENS_FOR_WIDE: usize = 48;

/// Any numbers: absent, beyond the length, repeated, and out of order.
fn wild_selection(draw: &mut Draw, position: i32, k: usize) -> Vec<i32> {
    let visible = usize::try_from(position + 1).unwrap_or(0) / 4;
    let one = |draw: &mut Draw| match draw.below(6) {
        0 => [-1, i32::MIN, i32::MAX, -77][draw.below(4)],
        _ => i32::try_from(draw.below(visible + 3)).unwrap(),
    };
    (0..k).map(|_| one(draw)).collect()
}

/// A batch for the kernel for many tokens, of any lengths and with some pages missing.
fn crowd(draw: &mut Draw, format: KvFormat, heads: usize, ratio: Option<usize>, k: usize) -> Setup {
    let tokens = 4 * TOKENS_FOR_WIDE.div_ceil(4 * heads.div_ceil(16));
    let position = |draw: &mut Draw| match draw.below(5) {
        0 => -1,
        1 => i32::try_from(draw.below(130)).unwrap(),
        _ => i32::try_from(draw.below(POSITIONS)).unwrap(),
    };
    let positions: Vec<i32> = (0..tokens).map(|_| position(draw)).collect();
    let mut setup = Setup::drawn(draw, format, heads, 1, &positions, ratio);
    setup.dtype = Dtype::Bf16;
    if ratio == Some(4) {
        setup.extra = Extra::Selected(positions.iter().map(|&p| wild_selection(draw, p, k)).collect());
    }
    for request in 0..tokens / 3 {
        let id = [-1, i32::MIN, i32::MAX, i32::try_from(setup.window.pages).unwrap()][draw.below(4)];
        setup.broken.push((true, request, draw.below(setup.window.width), id));
        let id = [-1, i32::MAX, i32::try_from(setup.rows.pages).unwrap()][draw.below(3)];
        setup.broken.push((false, request, draw.below(setup.rows.width), id));
    }
    setup
}

proptest! {
    #![proptest_config(config(8))]

    /// The kernel for many tokens; the ones for few, which run for any number where blocks have less shared memory.
    #[test]
    fn all_kernels_give_the_same_bits(
        seed: u64, heads in prop::sample::select(vec![5usize, 16, 64, 70]), k in prop::sample::select(vec![24usize, 300]),
        format in prop::sample::select(vec![KvFormat::Fp8, KvFormat::Bf16]),
        ratio in prop::sample::select(vec![None, Some(4), Some(4), Some(128)]),
    ) {
        let Some(device) = device() else { return Ok(()) };
        let recorder = Recorder::new(device);
        let on = |setup: &Setup, bytes: usize| {
            let (built, device) = (setup.build(), recorder.as_if(recorder.multiprocessors(), bytes));
            built.case.run_on(&Cuda::new("device", Arc::new(device))).bytes(built.out.buffer).to_vec()
        };
        let mut draw = Draw::new(seed);
        let setup = crowd(&mut draw, format, heads, ratio, k);
        let [many, few] = [recorder.shared_memory(), 99 << 10].map(|bytes| on(&setup, bytes));
        let one = on(&setup.alone(&mut draw), recorder.shared_memory());
        let ran: Vec<String> = recorder.launched().into_iter().collect();
        prop_assert_eq!(ran, ["attention_5", "attention_8", "attention_wide"]);
        prop_assert!(one == few[..one.len()], "one token and a batch");
        prop_assert!(many == few);
    }
}
