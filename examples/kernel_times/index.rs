//! The indexer: scores, their best, and the rows that they are computed from.

use flashlane::cuda::{CudaError, IndexReader};
use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{Dtype, IndexLogits, IndexSelect, IndexStore, Op, Paged, StateLayout, TopK};

use super::{Bench, MAX_POSITIONS, Suite};

/// A pool of index rows whose scales are one.
fn index_pool(format: IndexFormat, pages: usize, random: &[u8]) -> Vec<u8> {
    let mut page: Vec<u8> = match format {
        IndexFormat::Bf16 => {
            random.chunks(2).flat_map(|p| [p[0], p[1] & 0x80 | 0x3c]).take(64 * 256).collect()
        }
        _ => random.iter().map(|b| b & 0xbf).take(64 * format.code_bytes()).collect(),
    };
    match format {
        IndexFormat::Fp8 => page.extend(1f32.to_le_bytes().repeat(64)),
        IndexFormat::Fp4 => page.extend([127; 256]),
        _ => {}
    }
    page.repeat(pages)
}

impl Suite {
    /// Scores of `rows` rows for each of `batch` tokens: the logits, or the `select` best.
    pub(super) fn scores(
        &mut self,
        reader: IndexReader,
        format: IndexFormat,
        (batch, rows): (usize, usize),
        select: Option<usize>,
    ) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let heads = 64;
        let copies = (4_000_000 / (batch * rows)).clamp(1, 8);
        for _ in 0..copies {
            let tokens = b.tokens(batch, 4 * rows - 1);
            let pages = batch * rows / 64 + 1;
            let pool = index_pool(format, pages, &b.random);
            let pool = b.pool(pool);
            // Each request's pages are spread over the pool.
            let table: Vec<i32> =
                (0..batch * rows / 64).map(|i| (i * 7919 % (pages - 1) + 1) as i32).collect();
            let table = b.ints(&table);
            let keys = Paged { pool, table, width: rows / 64, page_rows: 64, pages };
            let n = batch * heads * format.code_bytes();
            let query = index_pool(format, (batch * heads).div_ceil(64), &b.random)[..n].to_vec();
            let codes = b.value(Dtype::U8, n, query);
            let ones = match format {
                IndexFormat::Fp8 => 1f32.to_le_bytes().repeat(batch * heads),
                _ => vec![127; 4 * batch * heads],
            };
            let scales = (format.scale_bytes() > 0).then(|| b.value(Dtype::U8, ones.len(), ones));
            let weights = b.real(Dtype::F32, batch * heads);
            let scale = 0.011;
            if let Some(k) = select {
                let selected = b.out(Dtype::I32, batch * k);
                let op =
                    IndexSelect { tokens, codes, scales, weights, keys, selected, k, heads, format, scale };
                b.node(Op::IndexSelect(op));
            } else {
                let logits = b.out(Dtype::F32, batch * rows);
                let op = IndexLogits { tokens, codes, scales, weights, keys, logits, heads, format, scale };
                b.node(Op::IndexLogits(op));
            }
        }
        let written = select.map_or(4 * rows, |k| 4 * k);
        let bytes = batch * (rows * format.row_bytes() + written + heads * (format.row_bytes() + 4));
        let name = match (select, reader) {
            (Some(_), _) => "index_select",
            (None, IndexReader::Fast) => "index_logits_fast",
            (None, IndexReader::Simple) => "index_logits_simple",
        };
        let chosen = select.map_or(String::new(), |k| format!(", k {k}"));
        self.add(name, format!("{format:?} {batch} x {rows}{chosen}"), bytes, b, reader)
    }

    pub(super) fn all_logits(&mut self) -> Result<(), CudaError> {
        let shapes =
            [(1, 2048), (1, 32768), (1, 262_144), (8, 32768), (64, 2048), (64, 32768), (64, 262_144)];
        for format in [IndexFormat::Fp8, IndexFormat::Bf16, IndexFormat::Fp4] {
            shapes.iter().try_for_each(|&shape| self.scores(IndexReader::Fast, format, shape, None))?;
            self.scores(IndexReader::Simple, format, (1, 32768), None)?;
        }
        Ok(())
    }

    pub(super) fn topk(&mut self, batch: usize, rows: usize, k: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        for _ in 0..(8_000_000 / (batch * rows)).clamp(1, 8) {
            let tokens = b.tokens(batch, 4 * rows - 1);
            let logits = b.real(Dtype::F32, batch * rows);
            let selected = b.out(Dtype::I32, batch * k);
            b.node(Op::TopK(TopK { tokens, logits, width: rows, selected, k }));
        }
        self.add("topk", format!("{batch} x {rows}, k {k}"), batch * (4 * rows + 4 * k), b, IndexReader::Fast)
    }

    pub(super) fn index_store(&mut self, format: IndexFormat, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let (ape, norm, rope) = (b.floats(4 * 256)?, b.floats(128)?, b.floats(MAX_POSITIONS * 64)?);
        let layout = StateLayout { ratio: 4, width: 128 };
        for _ in 0..8 {
            let tokens = b.tokens(rows, 1023);
            let kvg = b.real(Dtype::F32, rows * 512);
            let state_slot = b.ints(&(0..rows as i32).collect::<Vec<_>>());
            let row_slot = b.longs(&(0..rows as i64).collect::<Vec<_>>());
            let state = b.state(rows * layout.len());
            let pages = rows.div_ceil(64);
            let pool = b.pool(vec![0; pages * format.page_bytes(64)]);
            b.node(Op::IndexStore(IndexStore {
                tokens,
                kvg,
                ape,
                norm,
                rope,
                state_slot,
                row_slot,
                state,
                state_slots: rows,
                layout,
                pool,
                pages,
                format,
                max_positions: MAX_POSITIONS,
                eps: 1e-6,
            }));
        }
        let bytes = rows * (2048 + 7 * 1024 + 2048 + format.row_bytes());
        self.add("index_store", format!("{format:?} {rows} rows"), bytes, b, IndexReader::Fast)
    }
}
