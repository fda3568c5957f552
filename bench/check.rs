//! The output of what is timed, checked once: the property tests have the bounds, this sees that the work was done.

use flashlane::cpu::serial;
use flashlane::cpu::simd::Simd;
use flashlane::ops::{BufferId, Dtype};
use flashlane::step::Class;
use half::bf16;

use crate::bench::Bench;
use crate::support::Case;

/// A real number may be off by this part of the largest; one integer or byte in [`FEW`] may differ: a neighbouring code, or
/// the other of two rows with nearly the same score.
const TOLERANCE: f64 = 0.02;
const FEW: usize = 50;

/// The first row, by the CPU path and every other executor there is, against the oracle.
pub(crate) fn by_the_oracle(bench: &Bench) {
    let case = bench.first_row();
    let runs = case.run();
    let (oracle, others) = runs.all.split_first().expect("the oracle");
    for id in outputs(&case) {
        for found in others {
            let name = format!("{} {} by {}, {}", bench.kernel, bench.shape, found.executor, name(&case, id));
            compare(&name, &case, id, oracle.bytes(id), found.bytes(id));
        }
    }
}

/// The first row in `found`, against the CPU path.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for what no oracle can do in time"))]
pub(crate) fn by_the_cpu<'a>(bench: &Bench, found: impl Fn(BufferId) -> Option<&'a [u8]>) {
    let case = bench.first_row();
    let (mut memory, mut resident) = case.memory(0);
    let weights = case.cpu_weights(Simd::detect()).expect("weights");
    serial::run_step(&case.graph, &case.plan, &mut memory, &mut resident, &weights).expect("a run");
    for id in outputs(&case) {
        let want = case.bytes(id, &memory, &resident).expect("an operand");
        let name = format!("{} {}, {}", bench.kernel, bench.shape, name(&case, id));
        compare(&name, &case, id, want, found(id).expect("an operand"));
    }
}

fn name(case: &Case, id: BufferId) -> &str {
    &case.graph.buffer(id).name
}

fn outputs(case: &Case) -> impl Iterator<Item = BufferId> {
    case.graph.buffer_ids().filter(|&id| !matches!(case.graph.buffer(id).class, Class::Weight(_)))
}

/// The bytes of `want` that the case says are written, and those at the same places in `found`.
fn compare(name: &str, case: &Case, id: BufferId, want: &[u8], found: &[u8]) {
    let dtype = case.graph.buffer(id).dtype;
    let written = case.written(id);
    let of = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().zip(&written).filter(|(_, w)| **w).map(|(b, _)| *b).collect()
    };
    let (want, found) = (of(want), of(found));
    if want.is_empty() {
        return;
    }
    if matches!(dtype, Dtype::Bf16 | Dtype::F32) {
        return close(name, &reals(dtype, &want), &reals(dtype, &found));
    }
    let size = dtype.size();
    let apart = want.chunks(size).zip(found.chunks(size)).filter(|(w, f)| w != f).count();
    let count = want.len() / size;
    assert!(apart <= count / FEW, "{name}: {apart} of {count} differ");
}

fn close(name: &str, want: &[f64], found: &[f64]) {
    let largest = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    assert!(largest > 0.0 && largest.is_finite(), "{name}: the largest expected value is {largest}");
    for (i, (w, f)) in want.iter().zip(found).enumerate() {
        assert!((w - f).abs() <= TOLERANCE * largest, "{name}: element {i} is {f}, expected {w}");
    }
}

fn reals(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let values = bytes.chunks_exact(dtype.size());
    match dtype {
        Dtype::Bf16 => values.map(|b| bytemuck::pod_read_unaligned::<bf16>(b).to_f64()).collect(),
        _ => values.map(|b| f64::from(bytemuck::pod_read_unaligned::<f32>(b))).collect(),
    }
}
