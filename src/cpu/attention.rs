//! `attention`: each query row against its window and its compressed rows.
//!
//! A task is a few tokens of one request (prefill) or a share of the heads of one token (decode). It decodes the rows it
//! needs once, for all its heads and, in the window, for all its tokens. A query walks its rows in blocks of [`BLOCK`] with
//! a running maximum: window first, then compressed rows, so the order of its sums is a constant of its own list of rows.

use std::ops::Range;

use super::ExecError;
use super::context::{Context, Rope};
use super::knock_out::KnockOut;
use super::math::{exp, exp_scores, rotate_last, scale};
use super::pages::{Pages, decode_kv};
use super::products::{Inputs, Strides, matmul, weighted_sum};
use super::rows::{Rows, with_buffer, with_scratch};
use super::simd::Simd;
use crate::ops::{Attention, Compressed, HEAD_DIM, WINDOW};

/// Rows between two looks at the running maximum.
const BLOCK: usize = 64;
/// Tokens that share decoded window rows.
const TOKEN_TILE: usize = 16;

/// Where compressed rows come from.
enum Source<'a> {
    None,
    Selected { pages: Pages<'a>, selected: &'a [i32], k: usize },
    All(Pages<'a>),
}

struct Job<'a, 'w> {
    op: &'a Attention,
    positions: &'a [i32],
    q: Rows<'a>,
    window: Pages<'a>,
    compressed: Source<'a>,
    sink: &'a [f32],
    rope: Rope<'w>,
    simd: Simd,
    knocked_out: Option<KnockOut>,
}

pub(super) fn run(op: &Attention, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, simd) = (op.tokens.rows(), context.simd);
    let len = rows * op.heads * HEAD_DIM;
    let pages = |paged| context.pages(&op.tokens, paged, op.format.page_bytes(paged.page_rows));
    let window = pages(&op.window)?;
    let compressed = match &op.compressed {
        Compressed::None => Source::None,
        Compressed::Selected { rows: paged, selected, k } => Source::Selected {
            pages: pages(paged)?,
            selected: context.ints("selected", selected, rows * k)?,
            k: *k,
        },
        Compressed::All { rows } => Source::All(pages(rows)?),
    };
    let positions = context.positions(&op.tokens)?;
    let q = context.rows("q", &op.q, len)?;
    let sink = context.vector("sink", &op.sink, op.heads)?;
    let rope = context.rope(&op.rope, op.max_positions)?;
    let knocked_out = context.knocked_out;
    let out = context.rows_mut("out", &op.out, len)?;
    let job = Job { op, positions, q, window, compressed, sink: &sink, rope, simd, knocked_out };
    let keys: usize = (0..rows).map(|t| job.keys(t)).sum();
    let work = keys * (2 * op.heads + 4) * HEAD_DIM;
    if op.tokens.per_request.is_multiple_of(TOKEN_TILE) {
        let width = op.heads * HEAD_DIM;
        out.fill(simd, TOKEN_TILE * width, work, |task, out| job.tokens(task * TOKEN_TILE, 0..op.heads, out));
    } else {
        let shares = if rows < rayon::current_num_threads() && op.heads.is_multiple_of(2) { 2 } else { 1 };
        let heads = op.heads / shares;
        out.fill(simd, heads * HEAD_DIM, work, |task, out| {
            let first = task % shares * heads;
            job.tokens(task / shares, first..first + heads, out);
        });
    }
    Ok(())
}

/// A query's running softmax: a maximum and a sum for each head.
struct Running<'s> {
    max: &'s mut [f32],
    sum: &'s mut [f32],
    scores: &'s mut [f32],
}

impl Job<'_, '_> {
    fn position(&self, t: usize) -> Option<usize> {
        usize::try_from(self.positions[t]).ok()
    }

    /// At most so many rows does token `t` see.
    fn keys(&self, t: usize) -> usize {
        let Some(p) = self.position(t) else { return 0 };
        let window = (p + 1).min(WINDOW);
        match &self.compressed {
            Source::None => window,
            Source::Selected { k, .. } => window + (*k).min((p + 1) / 4),
            Source::All(pages) => window + ((p + 1) / 128).min(pages.paged.max_rows()),
        }
    }

    /// The tokens from `first` on, as many as `out` has rows of these heads.
    fn tokens(&self, first: usize, heads: Range<usize>, out: &mut [f32]) {
        let width = heads.len() * HEAD_DIM;
        let tokens = first..first + out.len() / width;
        let positions = || tokens.clone().filter_map(|t| self.position(t));
        let (Some(low), Some(high)) = (positions().min(), positions().max()) else { return out.fill(0.0) };
        let request = first / self.op.tokens.per_request;
        with_buffer(|window| {
            let seen = (low + 1).saturating_sub(WINDOW)..high + 1;
            let window_rows = self.gather(&self.window, request, seen, window);
            with_buffer(|rows| {
                let all_rows = match &self.compressed {
                    Source::All(pages) => {
                        let visible = ((high + 1) / 128).min(pages.paged.max_rows());
                        self.gather(pages, request, 0..visible, rows)
                    }
                    _ => Vec::new(),
                };
                for (t, out) in tokens.zip(out.chunks_exact_mut(width)) {
                    let Some(position) = self.position(t) else {
                        out.fill(0.0);
                        continue;
                    };
                    let seen = (position + 1).saturating_sub(WINDOW)..position + 1;
                    let window = &window[span(&window_rows, seen)];
                    let compressed = self.compressed(t, position, &all_rows, rows);
                    self.query(t, position, heads.clone(), [window, compressed], out);
                }
            });
        });
    }

    /// The compressed rows of token `t`: a part of those that the tile has in `rows`, or its own selection, decoded there.
    fn compressed<'b>(&self, t: usize, position: usize, all: &[usize], rows: &'b mut Vec<f32>) -> &'b [f32] {
        match &self.compressed {
            Source::None => &[],
            Source::All(_) if self.blind(t) => &[],
            Source::All(_) => &rows[span(all, 0..(position + 1) / 128)],
            Source::Selected { pages, selected, k } => {
                let chosen = selected[t * k..(t + 1) * k].iter().filter_map(|&r| usize::try_from(r).ok());
                let visible = chosen.filter(|&r| r < (position + 1) / 4);
                let found = self.gather(pages, t / self.op.tokens.per_request, visible, rows);
                &rows[..found.len() * HEAD_DIM]
            }
        }
    }

    /// The knock-out of a C128 layer strikes this token. That of a C4 layer has struck its selection.
    fn blind(&self, t: usize) -> bool {
        let Some(layer) = self.knocked_out else { return false };
        let mut own = [0.0; 8];
        self.q.copy_to(self.simd, t * self.op.heads * HEAD_DIM, &mut own);
        layer.strikes(self.positions[t], &own).is_some()
    }

    /// Decodes the wanted rows that exist into `out`; returns which they are.
    fn gather(
        &self,
        pages: &Pages<'_>,
        request: usize,
        wanted: impl IntoIterator<Item = usize>,
        out: &mut Vec<f32>,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        for row in wanted {
            let Some((page, place)) = pages.find(request, row) else { continue };
            let at = found.len() * HEAD_DIM;
            if out.len() < at + HEAD_DIM {
                out.resize((at + HEAD_DIM).next_multiple_of(BLOCK * HEAD_DIM), 0.0);
            }
            if let Some(out) = out[at..].first_chunk_mut() {
                decode_kv(self.simd, self.op.format, page, place, pages.paged.page_rows, out);
            }
            found.push(row);
        }
        found
    }

    /// One token's heads against its rows.
    fn query(&self, t: usize, position: usize, heads: Range<usize>, rows: [&[f32]; 2], out: &mut [f32]) {
        let n = heads.len();
        with_scratch(n * (HEAD_DIM + BLOCK + 2), |scratch| {
            let (q, rest) = scratch.split_at_mut(n * HEAD_DIM);
            let (scores, rest) = rest.split_at_mut(n * BLOCK);
            let (max, sum) = rest.split_at_mut(n);
            self.q.copy_to(self.simd, (t * self.op.heads + heads.start) * HEAD_DIM, q);
            max.fill(f32::NEG_INFINITY);
            sum.fill(0.0);
            out.fill(0.0);
            let mut running = Running { max, sum, scores };
            for rows in rows {
                for block in rows.chunks(BLOCK * HEAD_DIM) {
                    self.block(q, block, &mut running, out);
                }
            }
            if rows.iter().all(|r| r.is_empty()) {
                return;
            }
            for (h, out) in out.chunks_exact_mut(HEAD_DIM).enumerate() {
                let (max, sink) = (running.max[h], self.sink[heads.start + h]);
                let top = if sink > max { sink } else { max };
                let fade = exp(max - top);
                let factor = fade / running.sum[h].mul_add(fade, exp(sink - top));
                scale(self.simd, out, factor);
                rotate_last(self.simd, out, self.rope.row(position), true);
            }
        });
    }

    /// Adds a block of rows to the running softmax and to the weighted sums in `out`.
    fn block(&self, q: &[f32], rows: &[f32], running: &mut Running<'_>, out: &mut [f32]) {
        let to = Strides { w: 1, x: BLOCK };
        matmul(self.simd, rows, Inputs::dense(q, HEAD_DIM), running.scores, to);
        for (h, out) in out.chunks_exact_mut(HEAD_DIM).enumerate() {
            let scores = &mut running.scores[h * BLOCK..][..rows.len() / HEAD_DIM];
            let (max, sum) = exp_scores(self.simd, scores, self.op.scale, running.max[h]);
            if max > running.max[h] {
                let fade = exp(running.max[h] - max);
                running.sum[h] *= fade;
                scale(self.simd, out, fade);
                running.max[h] = max;
            }
            running.sum[h] += sum;
        }
        weighted_sum(self.simd, running.scores, BLOCK, rows, HEAD_DIM, out);
    }
}

/// The elements of the gathered rows whose numbers are in `wanted`; `rows` ascends.
fn span(rows: &[usize], wanted: Range<usize>) -> Range<usize> {
    let start = rows.partition_point(|&r| r < wanted.start);
    let end = rows.partition_point(|&r| r < wanted.end);
    start * HEAD_DIM..end * HEAD_DIM
}
