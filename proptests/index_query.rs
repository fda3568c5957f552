//! `index_query` against the oracle, in every index format.

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{INDEX_DIM, IndexQuery, Op, ROPE_DIM};
use proptest::prelude::*;

use crate::support::{
    Case, Draw, Dtype, Found, Off, Value, config, hadamard_off, index_step, rope_off, rope_table,
};

const POSITIONS: usize = 50;
const FORMATS: [IndexFormat; 4] = [IndexFormat::F32, IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];

pub(crate) struct Built {
    pub(crate) case: Case,
    codes: Value,
    scales: Option<Value>,
    format: IndexFormat,
}

pub(crate) fn build(positions: &[i32], q: &[f32], dtype: Dtype, format: IndexFormat) -> Built {
    let mut case = Case::new();
    let tokens = case.tokens(1, positions);
    let heads = q.len() / INDEX_DIM / positions.len();
    let q = case.real("q", dtype, q);
    for t in (0..positions.len()).filter(|&t| positions[t] < 0) {
        case.unread_elements(&q, t * heads * INDEX_DIM..(t + 1) * heads * INDEX_DIM);
    }
    let rope = case.rope(POSITIONS);
    let all = positions.len() * heads;
    let codes = case.out("codes", Dtype::U8, all * format.code_bytes());
    let scales =
        (format.scale_bytes() > 0).then(|| case.out("scales", Dtype::U8, all * format.scale_bytes()));
    case.op(Op::IndexQuery(IndexQuery {
        tokens,
        q,
        rope,
        codes,
        scales,
        heads,
        format,
        max_positions: POSITIONS,
    }));
    Built { case, codes, scales, format }
}

impl Built {
    fn head(&self, found: &Found, i: usize) -> Vec<f64> {
        let part = |value: &Value, len: usize| found.bytes(value.buffer)[i * len..(i + 1) * len].to_vec();
        let scales = self.scales.map_or_else(Vec::new, |s| part(&s, self.format.scale_bytes()));
        let mut out = [0.0; INDEX_DIM];
        self.format.decode(&part(&self.codes, self.format.code_bytes()), &scales, &mut out);
        out.iter().map(|&v| f64::from(v)).collect()
    }
}

#[test]
fn a_unit_vector_becomes_a_row_of_the_hadamard_matrix() {
    // Dim 5 is not rotated: H[i][5] / sqrt(128), sign by the parity of i & 5.
    let mut q = vec![0.0; 2 * INDEX_DIM];
    q[5] = 1.0;
    let built = build(&[7, -1], &q, Dtype::F32, IndexFormat::F32);
    for found in built.case.run().all {
        for (i, v) in built.head(&found, 0).iter().enumerate() {
            let sign = if (i & 5).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
            assert!((v - sign / 128f64.sqrt()).abs() < 1e-7, "{}: {i}", found.executor);
        }
        assert_eq!(built.head(&found, 1), [0.0; INDEX_DIM], "padding is zero bytes");
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn is_the_oracles(
        seed: u64, rows in 1usize..4, heads in 1usize..6, bf16: bool, format in prop::sample::select(FORMATS.to_vec()),
    ) {
        let mut draw = Draw::new(seed);
        let q = draw.exact(rows * heads * INDEX_DIM, 2.0);
        let positions: Vec<i32> = (0..rows).map(|_| i32::try_from(draw.below(POSITIONS)).unwrap()).collect();
        let built = build(&positions, &q, if bf16 { Dtype::Bf16 } else { Dtype::F32 }, format);
        let runs = built.case.run();
        let table = rope_table(POSITIONS);
        for (i, head) in q.chunks(INDEX_DIM).enumerate() {
            let position = usize::try_from(positions[i / heads]).unwrap();
            let head = Off::exact(head.iter().map(|&v| f64::from(v)));
            let exact = hadamard_off(&rope_off(&head, &table[position * ROPE_DIM..][..ROPE_DIM]));
            runs.agree_rounded(
                |found| built.head(found, i),
                &exact,
                format != IndexFormat::F32,
                |i, v| index_step(format, &exact.values, i, v),
            );
        }
    }
}
