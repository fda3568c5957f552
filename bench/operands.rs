//! Operands of benchmarks. Their numbers depend on the operand's place in the case alone, so that the first row of a node is
//! the same among many rows; what is large is random bytes, cut to be numbers of moderate size in its format.

use flashlane::checkpoint::WeightFormat;
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{BufferId, PAGE_ROWS, Paged, Tokens};
use rayon::prelude::*;

use crate::support::{Case, Draw, Dtype, Stored, Value};

/// ue8m0 of 2^-6 and of 1, and e4m3 of 1.
const SMALL: u8 = 121;
const ONE: u8 = 127;
const E4M3_ONE: u8 = 0x38;

/// Random bytes that are drawn together.
const PART: usize = 1 << 20;

/// e4m3 codes below 2, none of them NaN.
fn e4m3(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().for_each(|b| *b &= 0xbf);
    bytes
}

/// bf16 numbers of either sign between 2^-7 and 2^-5.
fn bf16(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b = *b & 0x80 | 0x3c);
    bytes
}

/// The pages of some requests: the first `before` of each given back, `width` held.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) requests: usize,
    pub(crate) before: usize,
    pub(crate) width: usize,
    pub(crate) page_rows: usize,
}

impl Draw {
    /// In parts, so that many hands make them.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (seed, mut out) = (self.bits(), vec![0; len]);
        out.par_chunks_mut(PART).enumerate().for_each(|(number, part)| {
            let mut draw = Self::new(seed ^ number as u64);
            part.chunks_mut(8).for_each(|b| b.copy_from_slice(&draw.bits().to_le_bytes()[..b.len()]));
        });
        out
    }
}

impl Case {
    fn draw(&self) -> Draw {
        Draw::new(self.graph.buffers.len() as u64 + 1)
    }

    /// An operand of numbers in `[-1, 1)`.
    pub(crate) fn noise(&mut self, name: &str, dtype: Dtype, len: usize) -> Value {
        let mut draw = self.draw();
        let data: Vec<f32> = (0..len).map(|_| draw.uniform()).collect();
        self.real(name, dtype, &data)
    }

    /// A small f32 weight of numbers in `[-1, 1)`.
    pub(crate) fn noise_vector(&mut self, name: &str, len: usize) -> Value {
        let mut draw = self.draw();
        let data: Vec<f32> = (0..len).map(|_| draw.uniform()).collect();
        self.vector(name, &data)
    }

    /// Requests of one token each, all at a position.
    pub(crate) fn rows_at(&mut self, rows: usize, position: usize) -> Tokens {
        self.tokens(1, &vec![position as i32; rows])
    }

    /// A weight `[rows, cols]`.
    pub(crate) fn noise_matrix(
        &mut self,
        name: &str,
        format: WeightFormat,
        rows: usize,
        cols: usize,
    ) -> Value {
        let codes = self.draw().bytes(rows * format.row_bytes(cols));
        let scales = rows.div_ceil(format.scale_rows()) * format.scale_row_bytes(cols);
        let stored = match format {
            WeightFormat::Nvfp4 => Stored::NvFp4 { codes, scales: vec![E4M3_ONE; scales], scale2: 0.01 },
            WeightFormat::Mxfp4 => Stored::MxFp4 { codes, scales: vec![SMALL; scales] },
            WeightFormat::Fp8Block => Stored::Fp8 { codes: e4m3(codes), scales: vec![SMALL; scales] },
            _ => {
                let pairs = bf16(codes);
                let real = |b: &[u8]| half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
                Stored::Bf16(pairs.chunks_exact(2).map(real).collect())
            }
        };
        self.weight(name, rows, cols, stored)
    }

    /// A pool in which the pages of a request are in no order, and its page table. Page 0 is nobody's. `fill` makes the bytes
    /// of a page.
    fn noise_pages(
        &mut self,
        held: Held,
        page_bytes: usize,
        fill: impl Fn(&mut Draw) -> Vec<u8> + Sync,
    ) -> Paged {
        let Held { requests, before, width, page_rows } = held;
        let (seed, owned) = ((self.graph.buffers.len() as u64) << 32, requests * width);
        let mut table = vec![0; requests * (before + width)];
        // By page, its number among all.
        let mut numbers = vec![0; owned];
        for i in 0..owned {
            let page = i * 7919 % owned;
            table[i / width * (before + width) + before + i % width] = page as i32 + 1;
            numbers[page] = i as u64;
        }
        let mut bytes = vec![0; (owned + 1) * page_bytes];
        let pages = bytes.par_chunks_exact_mut(page_bytes).skip(1).zip(&numbers);
        pages.for_each(|(page, number)| page.copy_from_slice(&fill(&mut Draw::new(seed | number))));
        let pool = self.pool("pool", bytes);
        let table = self.ints("table", &table);
        Paged { pool, table, width: before + width, page_rows, pages: owned + 1 }
    }

    /// Index keys.
    pub(crate) fn noise_keys(&mut self, format: IndexFormat, requests: usize, rows: usize) -> Paged {
        let held = Held { requests, before: 0, width: rows / PAGE_ROWS, page_rows: PAGE_ROWS };
        self.noise_pages(held, format.page_bytes(PAGE_ROWS), move |draw| {
            let mut page = index_codes(format, draw.bytes(PAGE_ROWS * format.code_bytes()));
            page.extend(index_scales(format, PAGE_ROWS));
            page
        })
    }

    /// Index queries: codes and scales of so many heads.
    pub(crate) fn noise_queries(&mut self, format: IndexFormat, heads: usize) -> (Value, Option<Value>) {
        let codes = index_codes(format, self.draw().bytes(heads * format.code_bytes()));
        let codes = self.codes("codes", &codes);
        let scales = index_scales(format, heads);
        (codes, (!scales.is_empty()).then(|| self.codes("scales", &scales)))
    }

    /// Key/value rows: e4m3 or bf16 numbers, with their scales.
    pub(crate) fn noise_kv(&mut self, format: KvFormat, held: Held) -> Paged {
        let bytes = format.page_bytes(held.page_rows);
        self.noise_pages(held, bytes, move |draw| match format {
            KvFormat::Fp8 => {
                let mut page = e4m3(draw.bytes(format.row_ranges(0, held.page_rows).1.start));
                page.resize(bytes, SMALL);
                page
            }
            _ => bf16(draw.bytes(bytes)),
        })
    }

    /// A pool of zeros of which the node writes these bytes.
    pub(crate) fn empty_pool(
        &mut self,
        bytes: usize,
        written: impl IntoIterator<Item = [std::ops::Range<usize>; 2]>,
    ) -> BufferId {
        let pool = self.pool("pool", vec![0; bytes]);
        written.into_iter().flatten().for_each(|range| self.writes(pool, range));
        pool
    }
}

fn index_codes(format: IndexFormat, bytes: Vec<u8>) -> Vec<u8> {
    match format {
        IndexFormat::Bf16 => bf16(bytes),
        IndexFormat::Fp8 => e4m3(bytes),
        _ => bytes,
    }
}

fn index_scales(format: IndexFormat, vectors: usize) -> Vec<u8> {
    match format {
        IndexFormat::Fp8 => 1f32.to_le_bytes().repeat(vectors),
        IndexFormat::Fp4 => vec![ONE; vectors * format.scale_bytes()],
        _ => Vec::new(),
    }
}
