//! `attention` of 8 heads over a window and 16 selected rows. Elements are multiply-adds.

use criterion::{BenchmarkId, Criterion, Throughput};
use flashlane::format::kv_row::KvFormat;
use flashlane::format::rope::RopeParams;
use flashlane::ops::{Attention, Compressed, HEAD_DIM, Op, PAGE_ROWS, Paged, WINDOW};

use crate::node::{Bench, noise};

const HEADS: usize = 8;
const SELECTED: usize = 16;
const PAGES: usize = 17;
const POSITIONS: usize = 1024;

fn pool(format: KvFormat) -> Vec<u8> {
    let (page_bytes, values) = (format.page_bytes(PAGE_ROWS), noise(5, PAGE_ROWS * HEAD_DIM));
    let mut page = vec![0; page_bytes];
    for (r, row) in values.as_chunks().0.iter().enumerate() {
        format.encode_row(row, &mut page, r, PAGE_ROWS);
    }
    page.repeat(PAGES)
}

pub(crate) fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    for (rows, per_request) in [(1, 1), (8, 1), (256, 256)] {
        group.throughput(Throughput::Elements((rows * HEADS * (WINDOW + SELECTED) * HEAD_DIM * 2) as u64));
        for format in [KvFormat::Fp8, KvFormat::Bf16] {
            group.bench_function(BenchmarkId::new(format!("{format:?}"), rows), |b| {
                let mut bench = Bench::new();
                let positions: Vec<i32> = (0..rows as i32).map(|t| 512 + t).collect();
                let tokens = bench.tokens(per_request, &positions);
                let q = bench.activation(&noise(1, rows * HEADS * HEAD_DIM));
                let width = POSITIONS / PAGE_ROWS;
                let table: Vec<i32> = (0..tokens.requests).flat_map(|_| 1..=width as i32).collect();
                let pool = bench.pool(&pool(format));
                let table = bench.ints(&table);
                let window = Paged { pool, table, width, page_rows: PAGE_ROWS, pages: PAGES };
                let selected: Vec<i32> =
                    (0..rows).flat_map(|_| (0..SELECTED as i32).map(|i| i * 7)).collect();
                let selected = bench.ints(&selected);
                let compressed = Compressed::Selected { rows: window, selected, k: SELECTED };
                let sink = bench.vector(vec![0.0; HEADS]);
                let rope = bench.vector(RopeParams { theta: 10_000.0, yarn: None }.table(POSITIONS));
                let out = bench.out(rows * HEADS * HEAD_DIM);
                let op = Attention {
                    tokens,
                    q,
                    window,
                    compressed,
                    sink,
                    rope,
                    out,
                    heads: HEADS,
                    format,
                    max_positions: POSITIONS,
                    scale: (HEAD_DIM as f32).powf(-0.5),
                };
                bench.iter(Op::Attention(op), b);
            });
        }
    }
    group.finish();
}
