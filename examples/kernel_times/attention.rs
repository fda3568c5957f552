//! Attention over the window and selected rows.

use flashlane::cuda::{CudaError, IndexReader};
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{Attention, Compressed, Dtype, Op, Paged};

use super::{Bench, MAX_POSITIONS, Suite};

impl Suite {
    pub(super) fn attention(&mut self, format: KvFormat, batch: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let (heads, k, compressed_pages) = (64, 512, 32);
        let rope = b.floats(MAX_POSITIONS * 64)?;
        let sink = b.floats(heads)?;
        for _ in 0..4 {
            let tokens = b.tokens(batch, 4095);
            let mut page = |pages: usize| {
                let bytes = format.page_bytes(64);
                let row: Vec<u8> = b.random.iter().map(|v| v & 0xbf).take(64 * 576).collect();
                let mut one = if format == KvFormat::Fp8 { row } else { vec![0x3c; bytes] };
                one.resize(bytes, 120);
                let pool = one.repeat(pages);
                b.pool(pool)
            };
            let (window_pages, row_pages) = (2 * batch + 1, compressed_pages * batch + 1);
            let (window, rows) = (page(window_pages), page(row_pages));
            let table: Vec<i32> = (0..batch * 64)
                .map(|i| if i % 64 < 62 { 0 } else { (i / 64 * 2 + i % 2 + 1) as i32 })
                .collect();
            let table = b.ints(&table);
            let window = Paged { pool: window, table, width: 64, page_rows: 64, pages: window_pages };
            let table: Vec<i32> = (0..batch * compressed_pages).map(|i| i as i32 + 1).collect();
            let table = b.ints(&table);
            let rows = Paged { pool: rows, table, width: compressed_pages, page_rows: 64, pages: row_pages };
            let visible = 1024;
            let picks: Vec<i32> = (0..batch * k).map(|i| (i % k * visible / k) as i32).collect();
            let selected = b.ints(&picks);
            let q = b.real(Dtype::Bf16, batch * heads * 512);
            let out = b.out(Dtype::Bf16, batch * heads * 512);
            let compressed = Compressed::Selected { rows, selected, k };
            b.node(Op::Attention(Attention {
                tokens,
                q,
                window,
                compressed,
                sink,
                rope,
                out,
                heads,
                format,
                max_positions: MAX_POSITIONS,
                scale: 0.044,
            }));
        }
        let bytes = batch * (640 * format.row_bytes() + heads * 512 * 4 + 4 * k);
        self.add("attention", format!("{format:?} {batch} x (128 + 512) rows"), bytes, b, IndexReader::Fast)
    }
}
