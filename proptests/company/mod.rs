//! Promise 1, operation by operation, on the CPU path: a row's bits are the same alone and in company, at any place, on one
//! thread and on two, with every instruction set. Rows are built from an id, so that the same row can stand anywhere.

mod cache;

use std::ops::Range;

use flashlane::cpu::simd::Simd;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::{fp8_block, mxfp4, nvfp4};
use flashlane::ops::{
    BufferId, Carry, Embed, Epilogue, ExpertsDown, ExpertsUp, HEAD_DIM, HyperPost, HyperPre, INDEX_DIM,
    IndexQuery, Linear, Op, Query, RmsNorm, Router, Routing, SINKHORN_DEFAULT, Sample, Tokens, TopK,
};

use crate::support::{Case, Draw, Dtype, Stored, Value};

const POSITIONS: usize = 1024;
/// Distinct rows; batches repeat and shuffle them.
const IDS: usize = 11;
const EPS: f32 = 1e-6;

/// A case, and where the bytes of each of its rows are.
struct Built {
    case: Case,
    rows: Vec<Vec<(BufferId, Range<usize>)>>,
}

/// Checks that `build` makes rows whose bits depend on their id alone.
fn hold(sizes: &[usize], build: impl Fn(&[usize]) -> Built) {
    let pools = [1, 2].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap());
    let rows = |ids: &[usize], simd, pool| -> Vec<Vec<Vec<u8>>> {
        let built = build(ids);
        let found = built.case.run_on_cpu(simd, pool);
        let row = |parts: &Vec<(BufferId, Range<usize>)>| {
            parts.iter().map(|(buffer, range)| found.bytes(*buffer)[range.clone()].to_vec()).collect()
        };
        built.rows.iter().map(row).collect()
    };
    let alone: Vec<_> = (0..IDS).map(|id| rows(&[id], Simd::detect(), &pools[0]).remove(0)).collect();
    let distinct: std::collections::HashSet<_> = alone.iter().collect();
    assert!(distinct.len() > IDS / 2, "these rows are too alike to test anything");
    for &n in sizes {
        let ids: Vec<usize> = (0..n).map(|i| (i * 7 + n) % IDS).collect();
        for (simd, pool) in Simd::available().iter().flat_map(|s| pools.iter().map(move |p| (*s, p))) {
            for (place, (row, id)) in rows(&ids, simd, pool).iter().zip(&ids).enumerate() {
                let threads = pool.current_num_threads();
                assert!(*row == alone[*id], "row {id} at {place} of {n}, {} x {threads}", simd.name());
            }
        }
    }
}

const SIZES: [usize; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// Also enough rows for the tiles of a prefill block.
const MANY: [usize; 6] = [2, 5, 9, 32, 41, 70];

/// `len` numbers for each id.
fn each(ids: &[usize], salt: u64, len: usize) -> Vec<f32> {
    ids.iter().flat_map(|&id| Draw::new(salt << 32 | id as u64).exact(len, 1.0)).collect()
}

fn shared(salt: u64, len: usize) -> Vec<f32> {
    Draw::new(salt << 32 | 0xffff).exact(len, 0.5)
}

fn position(id: usize) -> i32 {
    (300 + id * 53) as i32
}

fn decode(case: &mut Case, ids: &[usize]) -> Tokens {
    let positions: Vec<i32> = ids.iter().map(|&id| position(id)).collect();
    case.tokens(1, &positions)
}

/// Row `i` of each value, all having `n` rows.
fn spread(n: usize, values: &[Value]) -> Vec<Vec<(BufferId, Range<usize>)>> {
    let part = |i: usize, v: &Value| (v.buffer, i * v.bytes() / n..(i + 1) * v.bytes() / n);
    (0..n).map(|i| values.iter().map(|v| part(i, v)).collect()).collect()
}

fn packed(format: usize, rows: usize, cols: usize) -> Stored {
    let values = shared(77, rows * cols);
    match format {
        0 => Stored::F32(values),
        1 => Stored::Bf16(values),
        2 => {
            let (codes, scales) = fp8_block::quantize(&values, cols).unwrap();
            Stored::Fp8 { codes, scales }
        }
        3 => {
            let (codes, scales) = mxfp4::quantize(&values).unwrap();
            Stored::MxFp4 { codes, scales }
        }
        _ => {
            let q = nvfp4::quantize(&values, 0.001).unwrap();
            Stored::NvFp4 { codes: q.codes, scales: q.scales, scale2: q.scale2 }
        }
    }
}

#[test]
fn linear_in_every_format() {
    for (format, groups, epilogue) in [
        (0, 1, Epilogue::None),
        (1, 2, Epilogue::None),
        (2, 4, Epilogue::None),
        (3, 1, Epilogue::SwiGlu { limit: 1.0 }),
    ]
    .into_iter()
    .chain([(4, 1, Epilogue::None)])
    {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            hold(&MANY, |ids| {
                let (rows, cols_in, weight_rows) = (ids.len(), 256, 200);
                let mut case = Case::new();
                let x = case.real("x", dtype, &each(ids, 1, cols_in));
                let depth = cols_in / groups;
                let weight = case.weight("weight", weight_rows, depth, packed(format, weight_rows, depth));
                let cols_out = if epilogue == Epilogue::None { weight_rows } else { weight_rows / 2 };
                let out = case.out("out", dtype, rows * cols_out);
                case.op(Op::Linear(Linear { x, weight, out, rows, cols_in, weight_rows, groups, epilogue }));
                Built { case, rows: spread(rows, &[out]) }
            });
        }
    }
}

#[test]
fn norm_and_query() {
    hold(&SIZES, |ids| {
        let (rows, width) = (ids.len(), 200);
        let mut case = Case::new();
        let x = case.real("x", Dtype::Bf16, &each(ids, 1, width));
        let weight = case.vector("weight", &shared(2, width));
        let out = case.out("out", Dtype::Bf16, rows * width);
        case.op(Op::RmsNorm(RmsNorm { x, weight, out, rows, width, eps: EPS }));
        Built { case, rows: spread(rows, &[out]) }
    });
    hold(&SIZES, |ids| {
        let (rows, heads) = (ids.len(), 3);
        let mut case = Case::new();
        let tokens = decode(&mut case, ids);
        let q = case.real("q", Dtype::F32, &each(ids, 1, heads * HEAD_DIM));
        let rope = case.rope(POSITIONS);
        let out = case.out("out", Dtype::F32, rows * heads * HEAD_DIM);
        case.op(Op::Query(Query { tokens, q, rope, out, heads, max_positions: POSITIONS, eps: EPS }));
        Built { case, rows: spread(rows, &[out]) }
    });
}

#[test]
fn hyper_connections() {
    let (n, hidden) = (4, 272);
    hold(&MANY, |ids| {
        let mut case = Case::new();
        let rows = ids.len();
        let tokens = decode(&mut case, ids);
        let streams = case.real("streams", Dtype::Bf16, &each(ids, 1, n * hidden));
        let mixes = (2 + n) * n;
        let mix = case.vector("mix", &shared(2, mixes * n * hidden));
        let (base, scale) = (case.vector("base", &shared(3, mixes)), case.vector("scale", &[0.1, 0.2, 0.3]));
        let norm = case.vector("norm", &shared(4, hidden));
        let out = case.out("out", Dtype::Bf16, rows * hidden);
        let (post, comb) =
            (case.out("post", Dtype::F32, rows * n), case.out("comb", Dtype::F32, rows * n * n));
        let op = HyperPre {
            tokens,
            streams,
            mix,
            base,
            scale,
            norm,
            out,
            post,
            comb,
            n,
            hidden,
            sinkhorn_iters: SINKHORN_DEFAULT,
            eps: EPS,
            hc_eps: EPS,
        };
        case.op(Op::HyperPre(op));
        Built { case, rows: spread(rows, &[out, post, comb]) }
    });
    hold(&SIZES, |ids| {
        let mut case = Case::new();
        let rows = ids.len();
        let tokens = decode(&mut case, ids);
        let streams = case.real("streams", Dtype::F32, &each(ids, 1, n * hidden));
        let y = case.real("y", Dtype::F32, &each(ids, 2, hidden));
        let post = case.real("post", Dtype::F32, &each(ids, 3, n));
        let comb = case.real("comb", Dtype::F32, &each(ids, 4, n * n));
        let out = case.out("out", Dtype::F32, rows * n * hidden);
        case.op(Op::HyperPost(HyperPost { tokens, streams, y, post, comb, out, n, hidden }));
        Built { case, rows: spread(rows, &[out]) }
    });
}

#[test]
fn experts_up_and_down() {
    let (experts, k, hidden, width) = (5, 2, 96, 144);
    let ids_of = |ids: &[usize]| -> Vec<i32> {
        ids.iter().flat_map(|&id| [(id % 2) as i32, 2 + (id % 3) as i32]).collect()
    };
    hold(&MANY, |ids| {
        let (mut case, rows) = (Case::new(), ids.len());
        let tokens = decode(&mut case, ids);
        let x = case.real("x", Dtype::Bf16, &each(ids, 1, hidden));
        let (chosen, weights) =
            (case.ints("ids", &ids_of(ids)), case.real("w", Dtype::F32, &each(ids, 2, k)));
        let all = experts * 2 * width;
        let weight = case.weight("weight", all, hidden, packed(4, all, hidden));
        let h = case.out("h", Dtype::Bf16, rows * k * width);
        let op =
            ExpertsUp { tokens, x, ids: chosen, weights, weight, h, experts, k, hidden, width, limit: 1.0 };
        case.op(Op::ExpertsUp(op));
        Built { case, rows: spread(rows, &[h]) }
    });
    hold(&MANY, |ids| {
        let (mut case, rows) = (Case::new(), ids.len());
        let tokens = decode(&mut case, ids);
        let h = case.real("h", Dtype::F32, &each(ids, 1, k * width));
        let chosen = case.ints("ids", &ids_of(ids));
        let weight = case.weight("weight", experts * hidden, width, packed(1, experts * hidden, width));
        let shared = case.real("shared", Dtype::F32, &each(ids, 3, hidden));
        let y = case.out("y", Dtype::F32, rows * hidden);
        case.op(Op::ExpertsDown(ExpertsDown {
            tokens,
            h,
            ids: chosen,
            weight,
            shared,
            y,
            experts,
            k,
            hidden,
            width,
        }));
        Built { case, rows: spread(rows, &[y]) }
    });
}

#[test]
fn embedding_and_index_queries() {
    hold(&SIZES, |ids| {
        let (mut case, rows, hidden) = (Case::new(), ids.len(), 96);
        let tokens = decode(&mut case, ids);
        // Every other id is carried, from a slot that its place gives.
        let given = ids.iter().map(|&id| if id % 2 == 0 { id as i32 } else { Embed::CARRIED });
        let token = case.ints("token", &given.collect::<Vec<_>>());
        let cells: Vec<f32> = ids.iter().rev().flat_map(|&id| [f32::from_bits(id as u32); 2]).collect();
        let state = case.state("carry", &cells);
        let slot = case.ints("state_slot", &(0..rows as i32).rev().collect::<Vec<_>>());
        let carry = Carry { state, slots: rows, slot };
        let weight = case.weight("weight", IDS, hidden, packed(1, IDS, hidden));
        let out = case.out("out", Dtype::Bf16, rows * 4 * hidden);
        let resolved = case.out("ids", Dtype::I32, rows);
        let (vocab, streams, ids) = (IDS, 4, resolved);
        case.op(Op::Embed(Embed { tokens, token, carry, weight, out, ids, vocab, hidden, streams }));
        Built { case, rows: spread(rows, &[out, ids]) }
    });
    hold(&SIZES, |ids| {
        let (mut case, rows, heads, format) = (Case::new(), ids.len(), 3, IndexFormat::Fp4);
        let tokens = decode(&mut case, ids);
        let q = case.real("q", Dtype::Bf16, &each(ids, 1, heads * INDEX_DIM));
        let rope = case.rope(POSITIONS);
        let codes = case.out("codes", Dtype::U8, rows * heads * format.code_bytes());
        let scales = case.out("scales", Dtype::U8, rows * heads * format.scale_bytes());
        let (scales_out, max_positions) = (Some(scales), POSITIONS);
        let op = IndexQuery { tokens, q, rope, codes, scales: scales_out, heads, format, max_positions };
        case.op(Op::IndexQuery(op));
        Built { case, rows: spread(rows, &[codes, scales]) }
    });
}

#[test]
fn choices_of_rows_experts_and_tokens() {
    hold(&SIZES, |ids| {
        let (mut case, rows, width, k) = (Case::new(), ids.len(), 256, 9);
        let tokens = decode(&mut case, ids);
        let logits = case.real("logits", Dtype::F32, &each(ids, 1, width));
        let selected = case.out("selected", Dtype::I32, rows * k);
        case.op(Op::TopK(TopK { tokens, logits, width, selected, k }));
        Built { case, rows: spread(rows, &[selected]) }
    });
    hold(&SIZES, |ids| {
        let (mut case, rows, experts, k) = (Case::new(), ids.len(), 24, 5);
        let tokens = decode(&mut case, ids);
        let logits = case.real("logits", Dtype::F32, &each(ids, 1, experts));
        let routing = Routing::Scored { bias: case.vector("bias", &shared(2, experts)) };
        let (out, weights) = (case.out("ids", Dtype::I32, rows * k), case.out("w", Dtype::F32, rows * k));
        case.op(Op::Router(Router { tokens, logits, routing, ids: out, weights, experts, k, factor: 1.5 }));
        Built { case, rows: spread(rows, &[out, weights]) }
    });
    hold(&SIZES, |ids| {
        let (mut case, samples, vocab) = (Case::new(), ids.len(), 300);
        let same = |case: &mut Case, name, value| case.real(name, Dtype::F32, &vec![value; ids.len()]);
        let state = case.state("carry", &vec![0.0; 2 * samples]);
        let slot = case.ints("state_slot", &(0..samples as i32).rev().collect::<Vec<_>>());
        let cell = |(s, &id): (usize, &usize)| 2 * (samples - 1 - s) + position(id) as usize % 2;
        let cells: Vec<usize> = ids.iter().enumerate().map(cell).collect();
        cells.iter().for_each(|cell| case.writes(state, 4 * cell..4 * cell + 4));
        let op = Sample {
            logits: case.real("logits", Dtype::F32, &each(ids, 1, vocab)),
            temperature: same(&mut case, "temperature", 0.9),
            top_p: same(&mut case, "top_p", 0.8),
            min_p: same(&mut case, "min_p", 0.01),
            top_k: case.ints("top_k", &vec![40; samples]),
            seed: case.seeds("seed", &ids.iter().map(|&id| id as u64).collect::<Vec<_>>()),
            position: case.ints("position", &ids.iter().map(|&id| position(id)).collect::<Vec<_>>()),
            token: case.out("token", Dtype::I32, samples),
            status: case.out("status", Dtype::I32, samples),
            carry: Carry { state, slots: samples, slot },
            per_request: 1,
            samples,
            vocab,
        };
        let outputs = [op.token, op.status];
        case.op(Op::Sample(op));
        let mut rows = spread(samples, &outputs);
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push((state, 4 * cell..4 * cell + 4)));
        Built { case, rows }
    });
}
