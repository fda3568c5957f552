//! `index_select` chooses what `topk` would from the logits of `index_logits`, on every executor and by either reader.

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::PAGE_ROWS;
use proptest::prelude::*;

use crate::index_logits::{FORMATS, Setup};
use crate::support::{Draw, config};

/// The `k` best, as the definition of `topk` reads.
fn best(scores: &[f64], k: usize) -> Vec<i32> {
    let mut rows: Vec<usize> = (0..scores.len()).collect();
    rows.sort_by(|&a, &b| {
        let (x, y) = (scores[a], scores[b]);
        x.is_nan()
            .cmp(&y.is_nan())
            .then(y.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Equal))
            .then(a.cmp(&b))
    });
    rows.truncate(k);
    rows.sort_unstable();
    rows.resize(k, usize::MAX);
    rows.into_iter().map(|r| i32::try_from(r).unwrap_or(-1)).collect()
}

/// Each executor against its own logits: the oracle's differ from the others' by rounding, and so may choices.
fn check(setup: &Setup, k: usize) {
    for (e, (scores, chosen)) in setup.scores().iter().zip(setup.choices(k)).enumerate() {
        for (t, (scores, chosen)) in scores.iter().zip(chosen).enumerate() {
            assert_eq!(chosen, best(scores, k), "executor {e}, request {t}");
        }
    }
}

fn last_position(rows: usize) -> i32 {
    i32::try_from(4 * rows).unwrap() - 1
}

/// Fewer rows than are wanted, as many, one more, and enough for every block and every way to find candidates.
#[test]
fn rows_of_every_number() {
    for format in [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4] {
        let positions = [0, 63, 64, 65, 520, 1100].map(last_position);
        check(&Setup::drawn(&mut Draw::new(6), format, 2, &positions, 18), 64);
    }
    check(&Setup::drawn(&mut Draw::new(7), IndexFormat::Fp8, 1, &[last_position(4000)], 64), 512);
}

/// However many blocks a device is said to hold, by which a launch chooses how many a token has; rows for one block's choice
/// and for the cluster's.
#[cfg(feature = "cuda")]
#[test]
fn clusters_of_every_size() {
    for device in crate::support::cuda::devices() {
        let many = if device.name() == "gpu" { 8300 } else { 4200 };
        for (rows, blocks) in [520, many].iter().flat_map(|&rows| [2, 4, 8].map(|blocks| (rows, blocks))) {
            let setup = Setup::drawn(&mut Draw::new(8), IndexFormat::Fp8, 1, &[last_position(rows)], 130);
            let recorder = flashlane::cuda::Recorder::new(std::sync::Arc::clone(&device));
            let sized = std::sync::Arc::new(recorder.as_if(blocks, device.shared_memory()));
            let (chosen, scores) =
                setup.chosen_on(&crate::support::cuda::Cuda::new("device of a size", sized), 300);
            assert_eq!(chosen, best(&scores, 300), "{} of {rows} rows, {blocks} blocks", device.name());
            assert!(recorder.launched().contains(&format!("index_select_fast_{blocks}")));
        }
    }
}

/// Masked pages tie at -inf: the smallest rows of them fill up.
#[test]
fn masked_pages_are_chosen_last() {
    let mut setup = Setup::drawn(&mut Draw::new(3), IndexFormat::Bf16, 2, &[last_position(320)], 5);
    setup.broken = vec![(0, 0, -1), (0, 1, i32::MAX), (0, 4, i32::try_from(setup.book.pages).unwrap())];
    check(&setup, 2 * PAGE_ROWS + 5);
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn is_topk_of_index_logits(
        seed: u64, heads in 1usize..10, requests in 1usize..4, k in 1usize..100,
        format in prop::sample::select(FORMATS.to_vec()),
    ) {
        let mut draw = Draw::new(seed);
        let positions: Vec<i32> = (0..requests).map(|_| i32::try_from(draw.below(4 * 250)).unwrap() - 1).collect();
        check(&Setup::drawn(&mut draw, format, heads, &positions, 4), k);
    }
}
