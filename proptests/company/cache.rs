//! Rows of the cache, and what reads them.

use flashlane::cpu::simd::Simd;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{
    Attention, BufferId, Compress, Compressed, HEAD_DIM, INDEX_DIM, IndexLogits, Op, PAGE_ROWS, Paged,
    Pooling, RopeStore, StateLayout,
};

use super::{Built, EPS, POSITIONS, SIZES, decode, each, hold, position, shared, spread};
use crate::support::{Case, Draw, Dtype, kv_bytes};

#[test]
fn stored_rows() {
    for format in [KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32] {
        hold(&SIZES, |ids| {
            let mut case = Case::new();
            let (tokens, pages) = (decode(&mut case, ids), 11);
            let kv = case.real("kv", Dtype::F32, &each(ids, 1, HEAD_DIM));
            let (norm, rope) = (case.vector("norm", &shared(2, HEAD_DIM)), case.rope(POSITIONS));
            let places: Vec<(usize, usize)> = (0..ids.len()).map(|i| (1 + i, 5 * i)).collect();
            let slots: Vec<i64> = places.iter().map(|&(p, r)| (p * PAGE_ROWS + r) as i64).collect();
            let slot = case.longs("slot", &slots);
            let pool = case.pool("pool", vec![0; pages * format.page_bytes(PAGE_ROWS)]);
            let rows = places.iter().map(|&at| kv_bytes(format, PAGE_ROWS, at).map(|r| (pool, r)).to_vec());
            let rows: Vec<_> = rows.collect();
            rows.iter().flatten().for_each(|(buffer, range)| case.writes(*buffer, range.clone()));
            let max_positions = POSITIONS;
            let op = RopeStore {
                tokens,
                kv,
                norm,
                rope,
                slot,
                pool,
                pages,
                format,
                trained: true,
                max_positions,
                eps: EPS,
            };
            case.op(Op::RopeStore(op));
            Built { case, rows }
        });
    }
}

/// Each request completes a row, from a state of its own.
#[test]
fn compressed_rows_and_their_states() {
    for ratio in [4, 128] {
        hold(&SIZES, |ids| {
            let mut case = Case::new();
            let positions: Vec<i32> = ids.iter().map(|&id| ((id + 1) * ratio) as i32 - 1).collect();
            let tokens = case.tokens(1, &positions);
            let layout = StateLayout { ratio, width: HEAD_DIM };
            let (projection, page_rows, pages) = (layout.projection(), 256 / ratio, 11);
            let kvg = case.real("kvg", Dtype::F32, &each(ids, 1, projection));
            let ape = case.vector("ape", &shared(2, ratio * projection / 2));
            let (norm, rope) = (case.vector("norm", &shared(3, HEAD_DIM)), case.rope(2048));
            let slots: Vec<i32> = (0..ids.len() as i32).rev().collect();
            let state_slot = case.ints("state_slot", &slots);
            let places: Vec<(usize, usize)> = (0..ids.len()).map(|i| (1 + i, i % page_rows)).collect();
            let at: Vec<i64> = places.iter().map(|&(p, r)| (p * page_rows + r) as i64).collect();
            let row_slot = case.longs("row_slot", &at);
            let backwards: Vec<usize> = ids.iter().rev().copied().collect();
            let before: Vec<f32> = each(&backwards, 4, layout.len()).iter().map(|v| v.abs() + 0.1).collect();
            let state = case.state("state", &before);
            case.writes(state, 0..4 * before.len());
            let format = KvFormat::F32;
            let pool = case.pool("pool", vec![0; pages * format.page_bytes(page_rows)]);
            let rows = places.iter().zip(&slots).map(|(&at, &slot)| {
                let mut parts = kv_bytes(format, page_rows, at).map(|r| (pool, r)).to_vec();
                let len = 4 * layout.len();
                parts.push((state, slot as usize * len..(slot as usize + 1) * len));
                parts
            });
            let rows: Vec<_> = rows.collect();
            rows.iter().flatten().for_each(|(buffer, range)| case.writes(*buffer, range.clone()));
            let pooling = Pooling {
                tokens,
                kvg,
                ape,
                norm,
                rope,
                state_slot,
                row_slot,
                state,
                state_slots: ids.len(),
                layout,
                pool,
                pages,
                max_positions: 2048,
                eps: EPS,
            };
            case.op(Op::Compress(Compress { pooling, page_rows, format, trained: false }));
            Built { case, rows }
        });
    }
}

/// One pool that all requests read: what they see differs by position and selection.
fn pool(case: &mut Case, format: KvFormat, page_rows: usize, pages: usize) -> BufferId {
    let page_bytes = format.page_bytes(page_rows);
    let mut bytes = vec![0; pages * page_bytes];
    for (p, page) in bytes.chunks_mut(page_bytes).enumerate() {
        for r in 0..page_rows {
            let values = Draw::new((p * page_rows + r) as u64).normals(HEAD_DIM, 1.0);
            format.encode_row(values.first_chunk().unwrap(), page, r, page_rows);
        }
    }
    case.pool("pool", bytes)
}

fn table(case: &mut Case, pool: BufferId, requests: usize, width: usize, page_rows: usize) -> Paged {
    let all: Vec<i32> = (0..requests).flat_map(|_| (1..=width as i32).rev()).collect();
    Paged { pool, table: case.ints("table", &all), width, page_rows, pages: width + 1 }
}

/// `attention` with tokens of these positions, `per_request` for each request; every one sees the same pools.
fn attention(positions: &[i32], per_request: usize, ratio: usize, format: KvFormat) -> Built {
    let (mut case, heads, rows) = (Case::new(), 6, positions.len());
    let ids: Vec<usize> = positions.iter().map(|&p| p as usize).collect();
    let tokens = case.tokens(per_request, positions);
    let q = case.real("q", Dtype::F32, &each(&ids, 1, heads * HEAD_DIM));
    let width = POSITIONS / PAGE_ROWS;
    let buffer = pool(&mut case, format, PAGE_ROWS, width + 1);
    let window = table(&mut case, buffer, tokens.requests, width, PAGE_ROWS);
    let compressed = match ratio {
        4 => {
            let k = 70;
            let chosen = |id: &usize| (0..k as i32).map(|i| i * 2 + (*id % 2) as i32).collect::<Vec<_>>();
            let selected = case.ints("selected", &ids.iter().flat_map(chosen).collect::<Vec<_>>());
            let buffer = pool(&mut case, format, PAGE_ROWS, 5);
            Compressed::Selected {
                rows: table(&mut case, buffer, tokens.requests, 4, PAGE_ROWS),
                selected,
                k,
            }
        }
        128 => {
            let buffer = pool(&mut case, format, 2, 5);
            Compressed::All { rows: table(&mut case, buffer, tokens.requests, 4, 2) }
        }
        _ => Compressed::None,
    };
    let (sink, rope) = (case.vector("sink", &shared(3, heads)), case.rope(POSITIONS));
    let out = case.out("out", Dtype::F32, rows * heads * HEAD_DIM);
    let (max_positions, scale) = (POSITIONS, 0.1);
    let op =
        Attention { tokens, q, window, compressed, sink, rope, out, heads, format, max_positions, scale };
    case.op(Op::Attention(op));
    Built { case, rows: spread(rows, &[out]) }
}

#[test]
fn attention_over_every_kind_of_row() {
    for (ratio, format) in [(0, KvFormat::F32), (4, KvFormat::Fp8), (128, KvFormat::Bf16)] {
        hold(&[1, 2, 5, 9], |ids| {
            let positions: Vec<i32> = ids.iter().map(|&id| position(id)).collect();
            attention(&positions, 1, ratio, format)
        });
    }
}

fn index_logits(positions: &[i32], per_request: usize, format: IndexFormat) -> Built {
    let (mut case, heads, rows) = (Case::new(), 6, positions.len());
    let ids: Vec<usize> = positions.iter().map(|&p| p as usize).collect();
    let tokens = case.tokens(per_request, positions);
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for head in each(&ids, 1, heads * INDEX_DIM).as_chunks().0 {
        let (mut c, mut s) = (vec![0; format.code_bytes()], vec![0; format.scale_bytes()]);
        format.encode(head, &mut c, &mut s);
        codes.extend(c);
        scales.extend(s);
    }
    let codes = case.codes("codes", &codes);
    let scales = (!scales.is_empty()).then(|| case.codes("scales", &scales));
    let weights = case.real("weights", Dtype::F32, &each(&ids, 2, heads));
    let (width, page_bytes) = (4, format.page_bytes(PAGE_ROWS));
    let mut bytes = vec![0; (width + 1) * page_bytes];
    for (p, page) in bytes.chunks_mut(page_bytes).enumerate() {
        for (r, row) in shared(p as u64 + 9, PAGE_ROWS * INDEX_DIM).as_chunks().0.iter().enumerate() {
            format.encode_row(row, page, r, PAGE_ROWS);
        }
    }
    let buffer = case.pool("pool", bytes);
    let keys = table(&mut case, buffer, tokens.requests, width, PAGE_ROWS);
    let logits = case.partial("logits", Dtype::F32, rows * keys.max_rows());
    for (t, &p) in positions.iter().enumerate() {
        let start = t * keys.max_rows();
        case.writes_elements(&logits, start..start + ((p as usize + 1) / 4).min(keys.max_rows()));
    }
    case.op(Op::IndexLogits(IndexLogits {
        tokens,
        codes,
        scales,
        weights,
        keys,
        logits,
        heads,
        format,
        scale: 0.1,
    }));
    Built { case, rows: spread(rows, &[logits]) }
}

#[test]
fn index_logits_in_every_format() {
    for format in [IndexFormat::F32, IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4] {
        hold(&SIZES, |ids| {
            let positions: Vec<i32> = ids.iter().map(|&id| position(id)).collect();
            index_logits(&positions, 1, format)
        });
    }
}

/// A block of one request's tokens, as prefill runs it, gives each the bits that decode gives it.
#[test]
fn a_block_gives_the_bits_of_single_tokens() {
    let positions: Vec<i32> = (501..549).collect();
    let one_by_one = |build: &dyn Fn(&[i32], usize) -> Built| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let [block, single] = [positions.len(), 1].map(|per_request| {
            let built = build(&positions, per_request);
            let found = built.case.run_on_cpu(Simd::detect(), &pool);
            let parts = built.rows.iter().flatten();
            parts.map(|(buffer, range)| found.bytes(*buffer)[range.clone()].to_vec()).collect::<Vec<_>>()
        });
        assert!(block == single);
    };
    for (ratio, format) in [(0, KvFormat::Fp8), (4, KvFormat::Bf16), (128, KvFormat::F32)] {
        one_by_one(&|positions, per_request| attention(positions, per_request, ratio, format));
    }
    one_by_one(&|positions, per_request| index_logits(positions, per_request, IndexFormat::Fp8));
}
