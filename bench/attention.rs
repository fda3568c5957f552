//! `attention` over a window and selected rows, or all rows of ratio 128.

use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{Attention, Compressed, HEAD_DIM, Op, PAGE_ROWS, WINDOW};

use crate::bench::{At, Bench};
use crate::operands::Held;
use crate::support::{Case, Dtype};

#[derive(Clone, Copy)]
struct Shape {
    format: KvFormat,
    rows: usize,
    heads: usize,
    position: usize,
    /// Selected rows; all of ratio 128 without.
    k: Option<usize>,
}

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let small = |format, rows| Shape { format, rows, heads: 8, position: 1023, k: Some(16) };
    let cpu = [1, 8, 64].map(|rows| [small(KvFormat::Fp8, rows), small(KvFormat::Bf16, rows)]);
    let cpu = [&cpu.concat()[..], &[Shape { k: None, ..small(KvFormat::Fp8, 8) }]].concat();
    let full = |format, rows| Shape { format, rows, heads: 64, position: 8191, k: Some(512) };
    let gpu = [1, 8, 64].map(|rows| full(KvFormat::Fp8, rows));
    let more = [full(KvFormat::Bf16, 8), Shape { k: None, ..full(KvFormat::Fp8, 8) }];
    at.pick(cpu, [&gpu[..], &more].concat()).into_iter().map(bench).collect()
}

fn bench(shape: Shape) -> Bench {
    let Shape { format, rows, heads, position, k } = shape;
    let seen = WINDOW + k.unwrap_or((position + 1) / 128);
    let name = format!(
        "{format:?} {rows} x ({WINDOW} + {}{}) rows",
        seen - WINDOW,
        if k.is_some() { "" } else { " c128" }
    );
    let bytes = rows * (seen * format.row_bytes() + heads * HEAD_DIM * 4 + 4 * k.unwrap_or(0));
    let flops = 4 * rows * heads * seen * HEAD_DIM;
    Bench::new("attention", name, rows, move |case, rows| node(case, Shape { rows, ..shape }))
        .moves(bytes, flops)
        .launched(8)
}

fn node(case: &mut Case, shape: Shape) {
    let Shape { format, rows, heads, position, k } = shape;
    let max_positions = position + 1;
    let tokens = case.rows_at(rows, position);
    let q = case.noise("q", Dtype::Bf16, rows * heads * HEAD_DIM);
    let pages = |before, width, page_rows| Held { requests: rows, before, width, page_rows };
    let recent = WINDOW / PAGE_ROWS;
    let window = case.noise_kv(format, pages(max_positions / PAGE_ROWS - recent, recent, PAGE_ROWS));
    let compressed = match k {
        Some(k) => {
            let visible = max_positions / 4;
            let rows_of = case.noise_kv(format, pages(0, visible / PAGE_ROWS, PAGE_ROWS));
            let picks: Vec<i32> = (0..rows * k).map(|i| (i % k * visible / k) as i32).collect();
            Compressed::Selected { rows: rows_of, selected: case.ints("selected", &picks), k }
        }
        None => Compressed::All { rows: case.noise_kv(format, pages(0, max_positions / 256, 2)) },
    };
    let (sink, rope) = (case.noise_vector("sink", heads), case.rope(max_positions));
    let out = case.out("out", Dtype::Bf16, rows * heads * HEAD_DIM);
    let scale = (HEAD_DIM as f32).powf(-0.5);
    case.op(Op::Attention(Attention {
        tokens,
        q,
        window,
        compressed,
        sink,
        rope,
        out,
        heads,
        format,
        max_positions,
        scale,
    }));
}
