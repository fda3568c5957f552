//! `sample`: the next token, by temperature and nucleus.

use flashlane::ops::{Carry, Op, Sample};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype};

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let vocab = at.pick(768, 129_280);
    [1, 64].map(|rows| bench(rows, vocab)).into()
}

fn bench(samples: usize, vocab: usize) -> Bench {
    let build = move |case: &mut Case, samples: usize| node(case, samples, vocab);
    Bench::new("sample", format!("{samples} rows"), samples, build).moves(samples * (4 * vocab + 48), 0)
}

fn node(case: &mut Case, samples: usize, vocab: usize) {
    let logits = case.noise("logits", Dtype::F32, samples * vocab);
    let mut all = |name, value: f32| case.real(name, Dtype::F32, &vec![value; samples]);
    let (temperature, top_p, min_p) = (all("temperature", 0.8), all("top_p", 0.95), all("min_p", 0.0));
    let top_k = case.ints("top_k", &vec![0; samples]);
    let seed = case.seeds("seed", &(0..samples as u64).collect::<Vec<_>>());
    let position = case.ints("position", &vec![6; samples]);
    let token = case.out("token", Dtype::I32, samples);
    let status = case.out("status", Dtype::I32, samples);
    let state = case.state("carry", &vec![0.0; samples * Carry::CELLS]);
    let slot = case.ints("state_slot", &(0..samples as i32).collect::<Vec<_>>());
    for row in 0..samples {
        // The cell of an even position.
        case.writes(state, 8 * row..8 * row + 4);
    }
    let carry = Carry { state, slots: samples, slot };
    case.op(Op::Sample(Sample {
        logits,
        temperature,
        top_p,
        min_p,
        top_k,
        seed,
        position,
        token,
        status,
        carry,
        per_request: 1,
        samples,
        vocab,
    }));
}
