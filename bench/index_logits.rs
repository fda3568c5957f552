//! `index_logits`: scores of index keys, by both readers in every format; and the operands that `index_select` shares with it.

use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{INDEX_DIM, IndexLogits, Op, Paged, Tokens};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype, Value};

const FORMATS: [IndexFormat; 3] = [IndexFormat::Fp8, IndexFormat::Bf16, IndexFormat::Fp4];

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let few: &[_] = &[(1, 512), (8, 512)];
    let many = &[(1, 2048), (1, 32768), (1, 262_144), (8, 32768), (64, 2048), (64, 32768), (64, 262_144)];
    let shapes = at.pick(few, many);
    let of = |format| {
        let fast = shapes.iter().map(move |&shape| bench("index_logits_fast", format, shape, at));
        // What `index_select` and `topk` have besides, to be compared.
        let between = [(1, 8192), (8, 2048), (8, 8192), (64, 8192)].into_iter();
        let between = between.filter(move |_| at != At::Cpu && format == IndexFormat::Fp8);
        let fast = fast.chain(between.map(move |shape| bench("index_logits_fast", format, shape, at)));
        let simple = bench("index_logits_simple", format, (1, 32768), at).with_the_simple_kernel();
        fast.chain((at != At::Cpu).then_some(simple))
    };
    FORMATS.into_iter().flat_map(of).collect()
}

/// Index heads.
pub(crate) fn heads(at: At) -> usize {
    at.pick(8, 64)
}

fn bench(kernel: &'static str, format: IndexFormat, (batch, rows): (usize, usize), at: At) -> Bench {
    let heads = heads(at);
    Bench::new(
        at.pick("index_logits", kernel),
        format!("{format:?} {batch} x {rows}"),
        batch,
        move |case, batch| {
            let Scores { tokens, codes, scales, weights, keys } =
                Scores::new(case, format, (batch, heads, rows));
            let logits = case.out("logits", Dtype::F32, batch * rows);
            let scale = SCALE;
            case.op(Op::IndexLogits(IndexLogits {
                tokens,
                codes,
                scales,
                weights,
                keys,
                logits,
                heads,
                format,
                scale,
            }));
        },
    )
    .moves(bytes(format, batch, heads, rows) + 4 * batch * rows, 2 * batch * rows * heads * (INDEX_DIM + 1))
    .launched(launches(batch, rows))
}

/// As `scores` of `tools/rivals` has it.
pub(crate) fn launches(batch: usize, rows: usize) -> usize {
    (4_000_000 / (batch * rows)).clamp(1, 8)
}

pub(crate) const SCALE: f32 = 0.011;

/// Bytes of keys, queries and weights.
pub(crate) fn bytes(format: IndexFormat, batch: usize, heads: usize, rows: usize) -> usize {
    batch * (rows * format.row_bytes() + heads * (format.row_bytes() + 4))
}

/// What every operation that scores keys takes.
pub(crate) struct Scores {
    pub(crate) tokens: Tokens,
    pub(crate) codes: Value,
    pub(crate) scales: Option<Value>,
    pub(crate) weights: Value,
    pub(crate) keys: Paged,
}

impl Scores {
    /// Each of `batch` tokens sees `rows` rows.
    pub(crate) fn new(
        case: &mut Case,
        format: IndexFormat,
        (batch, heads, rows): (usize, usize, usize),
    ) -> Self {
        let tokens = case.rows_at(batch, 4 * rows - 1);
        let (codes, scales) = case.noise_queries(format, batch * heads);
        let weights = case.noise("weights", Dtype::F32, batch * heads);
        Self { tokens, codes, scales, weights, keys: case.noise_keys(format, batch, rows) }
    }
}
