//! `index_logits`: the score of every visible index row.
//!
//! Tokens of one request are taken a few at a time, so that a decoded page of keys serves them all.

use super::ExecError;
use super::context::Context;
use super::pages::{Pages, decode_keys};
use super::products::{Inputs, Strides, matmul};
use super::rows::{for_chunks, with_scratch};
use super::simd::{Simd, kernel};
use crate::format::index_row::IndexFormat;
use crate::ops::{INDEX_DIM, IndexLogits};

/// Tokens that share a decoded page.
const TOKEN_TILE: usize = 8;

kernel! {
    fn decode_heads<'a>(_lanes; format: IndexFormat, codes: &'a [u8], scales: &'a [u8], out: &'a mut [f32]) -> () {
        let (code_bytes, scale_bytes) = (format.code_bytes(), format.scale_bytes());
        for (h, out) in out.as_chunks_mut::<INDEX_DIM>().0.iter_mut().enumerate() {
            let codes = &codes[h * code_bytes..(h + 1) * code_bytes];
            format.decode(codes, &scales[h * scale_bytes..(h + 1) * scale_bytes], out);
        }
    }
}

kernel! {
    /// `logits[r] = sum_h scale weights[h] relu(dots[h, r])`, heads in ascending order.
    fn combine<'a>(_lanes; dots: &'a [f32], stride: usize, weights: &'a [f32], scale: f32, logits: &'a mut [f32]) -> () {
        logits.fill(0.0);
        for (dots, weight) in dots.chunks_exact(stride).zip(weights) {
            let weight = scale * weight;
            for (logit, dot) in logits.iter_mut().zip(dots) {
                // NaN stays visible.
                let positive = if *dot < 0.0 { 0.0 } else { *dot };
                *logit = weight.mul_add(positive, *logit);
            }
        }
    }
}

/// The operation with its operands at hand.
pub(super) struct Job<'a> {
    op: &'a IndexLogits,
    pub(super) positions: &'a [i32],
    codes: &'a [u8],
    scales: &'a [u8],
    weights: &'a [f32],
    keys: Pages<'a>,
    simd: Simd,
}

pub(super) fn run(op: &IndexLogits, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let width = op.keys.max_rows();
    let job = Job::new(op, context)?;
    let logits = context.f32s_mut("logits", &op.logits, op.tokens.rows() * width)?;
    let tile = job.tokens_of_a_task();
    for_chunks(logits, tile * width, job.work(), |task, logits| job.tile(task * tile, logits));
    Ok(())
}

impl<'a> Job<'a> {
    pub(super) fn new(op: &'a IndexLogits, context: &Context<'a, '_>) -> Result<Self, ExecError> {
        let heads = op.tokens.rows() * op.heads;
        let scales = match &op.scales {
            Some(scales) => context.codes("scales", scales, heads * op.format.scale_bytes())?,
            None => &[],
        };
        Ok(Self {
            op,
            positions: context.positions(&op.tokens)?,
            codes: context.codes("codes", &op.codes, heads * op.format.code_bytes())?,
            scales,
            weights: context.f32s("weights", &op.weights, heads)?,
            keys: context.pages(&op.tokens, &op.keys, op.format.page_bytes(op.keys.page_rows))?,
            simd: context.simd,
        })
    }

    pub(super) fn tokens_of_a_task(&self) -> usize {
        if self.op.tokens.per_request.is_multiple_of(TOKEN_TILE) { TOKEN_TILE } else { 1 }
    }

    /// Multiply-adds of all tokens.
    pub(super) fn work(&self) -> usize {
        self.positions.iter().map(|&p| self.visible(p) * self.op.heads * INDEX_DIM).sum()
    }

    /// Rows that token `t` sees.
    pub(super) fn visible_of(&self, t: usize) -> usize {
        self.visible(self.positions[t])
    }

    fn visible(&self, position: i32) -> usize {
        usize::try_from(position).map_or(0, |p| ((p + 1) / 4).min(self.op.keys.max_rows()))
    }

    /// The tokens from `first` on, as many as `logits` has rows.
    pub(super) fn tile(&self, first: usize, logits: &mut [f32]) {
        let (op, width) = (self.op, self.op.keys.max_rows());
        let tokens = logits.len() / width;
        let request = first / op.tokens.per_request;
        let most = self.positions[first..first + tokens].iter().map(|&p| self.visible(p)).max().unwrap_or(0);
        let (page_rows, head_len) = (op.keys.page_rows, op.heads * INDEX_DIM);
        with_scratch(tokens * head_len + page_rows * (INDEX_DIM + op.heads), |scratch| {
            let (q, rest) = scratch.split_at_mut(tokens * head_len);
            let (keys, dots) = rest.split_at_mut(page_rows * INDEX_DIM);
            self.queries(first, q);
            for number in 0..most.div_ceil(page_rows) {
                let rows = (most - number * page_rows).min(page_rows);
                let page = self.keys.page(request, number);
                if let Some(page) = page {
                    decode_keys(self.simd, op.format, page, page_rows, &mut keys[..rows * INDEX_DIM]);
                }
                for (i, logits) in logits.chunks_exact_mut(width).enumerate() {
                    let visible = self.visible(self.positions[first + i]).saturating_sub(number * page_rows);
                    let rows = visible.min(page_rows);
                    let logits = &mut logits[number * page_rows..][..rows];
                    if page.is_none() {
                        logits.fill(f32::NEG_INFINITY);
                    } else if rows > 0 {
                        let q = &q[i * head_len..(i + 1) * head_len];
                        self.score(first + i, &keys[..rows * INDEX_DIM], q, dots, logits);
                    }
                }
            }
        });
    }

    fn queries(&self, first: usize, q: &mut [f32]) {
        let (op, heads) = (self.op, q.len() / INDEX_DIM);
        let range = |bytes: usize| first * op.heads * bytes..(first * op.heads + heads) * bytes;
        let scales = &self.scales[range(op.format.scale_bytes())];
        decode_heads(self.simd, op.format, &self.codes[range(op.format.code_bytes())], scales, q);
    }

    fn score(&self, t: usize, keys: &[f32], q: &[f32], dots: &mut [f32], logits: &mut [f32]) {
        let (heads, stride) = (self.op.heads, logits.len());
        let to = Strides { w: 1, x: stride };
        matmul(self.simd, keys, Inputs::dense(q, INDEX_DIM), dots, to);
        let weights = &self.weights[t * heads..(t + 1) * heads];
        combine(self.simd, &dots[..heads * stride], stride, weights, self.op.scale, logits);
    }
}
