//! `compress`: tokens pooled into compressed key/value rows, and the pooling that `index_store` shares.
//!
//! The state is updated token by token, in prefill too, so that a row's bits do not depend on which step computed its
//! tokens. Channels are free, tokens are not.

use std::borrow::Cow;

use super::ExecError;
use super::context::{Context, Rope};
use super::math::{exp, rms_norm, rotate_last};
use super::pages::{KvPool, slot};
use super::simd::{Simd, kernel};
use crate::ops::{Compress, HEAD_DIM, Pooling, StateLayout, Tokens, c4_state_slot, c128_state_slot};

/// Everything that turns projections into rows.
pub(super) struct Compressor<'a, 'w> {
    pub(super) tokens: Tokens,
    pub(super) positions: &'a [i32],
    kvg: &'a [f32],
    ape: Cow<'w, [f32]>,
    norm: Cow<'w, [f32]>,
    rope: Rope<'w>,
    slots: &'a [i32],
    pub(super) state_slots: usize,
    layout: StateLayout,
    eps: f32,
    simd: Simd,
}

impl<'a, 'w> Compressor<'a, 'w> {
    pub(super) fn new(p: &Pooling, context: &Context<'a, 'w>) -> Result<Self, ExecError> {
        let layout = p.layout;
        if layout.ratio != 4 && layout.ratio != 128 {
            let (dimension, expected) = ("ratio", "4 or 128");
            return Err(ExecError::Dimension { op: "compress", dimension, expected, found: layout.ratio });
        }
        let projection = layout.projection();
        Ok(Self {
            tokens: p.tokens,
            positions: context.positions(&p.tokens)?,
            kvg: context.f32s("kvg", &p.kvg, p.tokens.rows() * projection)?,
            ape: context.vector("ape", &p.ape, layout.ratio * projection / 2)?,
            norm: context.vector("norm", &p.norm, layout.width)?,
            rope: context.rope(&p.rope, p.max_positions)?,
            slots: context.ints("state_slot", &p.state_slot, p.tokens.requests)?,
            state_slots: p.state_slots,
            layout,
            eps: p.eps,
            simd: context.simd,
        })
    }

    /// Updates the state with every token; hands on each completed row, normed and rotated, with the token that did it.
    pub(super) fn run(&self, state: &mut [f32], row: &mut [f32], mut done: impl FnMut(usize, &mut [f32])) {
        let StateLayout { ratio, width } = self.layout;
        for t in 0..self.tokens.rows() {
            let slot = usize::try_from(self.slots[t / self.tokens.per_request]).ok();
            let (Ok(position), Some(slot)) =
                (usize::try_from(self.positions[t]), slot.filter(|&s| s < self.state_slots))
            else {
                continue;
            };
            let state = &mut state[slot * self.layout.len()..(slot + 1) * self.layout.len()];
            let columns = self.layout.projection() / 2;
            let (kv, gate) = self.kvg[t * 2 * columns..(t + 1) * 2 * columns].split_at(columns);
            let token = Token { kv, gate, ape: &self.ape[position % ratio * columns..][..columns] };
            let complete = (position + 1).is_multiple_of(ratio);
            if ratio == 4 {
                self.keep(state, position, token);
                if complete {
                    self.pool(state, position, row);
                }
            } else {
                self.advance(state, position, token);
                if complete {
                    let (_, rest) =
                        state[c128_state_slot(position) * 3 * width..][..3 * width].split_at(width);
                    let (sum, acc) = rest.split_at(width);
                    row.iter_mut().zip(acc.iter().zip(sum)).for_each(|(r, (a, s))| *r = a / s);
                }
            }
            if complete {
                rms_norm(self.simd, row, Some(&self.norm), self.eps);
                rotate_last(self.simd, row, self.rope.row(position / ratio * ratio), false);
                done(t, row);
            }
        }
    }

    /// Ratio 4: stores the token's projections in the ring.
    fn keep(&self, state: &mut [f32], position: usize, token: Token<'_>) {
        let columns = 2 * self.layout.width;
        let (kv, gate) = state[c4_state_slot(position) * 2 * columns..][..2 * columns].split_at_mut(columns);
        kv.copy_from_slice(token.kv);
        gate.iter_mut().zip(token.gate.iter().zip(token.ape)).for_each(|(s, (g, a))| *s = g + a);
    }

    /// Ratio 4: pools the A halves of the four tokens before the last four and the B halves of the last four.
    fn pool(&self, state: &[f32], position: usize, row: &mut [f32]) {
        let (width, columns) = (self.layout.width, 2 * self.layout.width);
        let first = position / 4 * 4;
        let half = |p: usize, column: usize| {
            let at = c4_state_slot(p) * 2 * columns + column;
            (&state[at..at + width], &state[at + columns..at + columns + width])
        };
        let mut candidates = [(&[][..], &[][..]); 8];
        let count = if first == 0 { 4 } else { 8 };
        for (i, c) in candidates[8 - count..].iter_mut().enumerate() {
            let p = first + 4 + i - count;
            *c = half(p, if p < first { 0 } else { width });
        }
        pool_channels(self.simd, &candidates[8 - count..], row);
    }

    /// Ratio 128: the running softmax of each channel takes in the token.
    fn advance(&self, state: &mut [f32], position: usize, token: Token<'_>) {
        let len = 3 * self.layout.width;
        let (even, odd) = state.split_at_mut(len);
        let (old, new) = if c128_state_slot(position) == 0 { (&*odd, even) } else { (&*even, odd) };
        let old = (!position.is_multiple_of(128)).then_some(old);
        advance_channels(self.simd, old, token, new);
    }
}

/// A token's projections and the position embedding of its gate.
#[derive(Clone, Copy)]
struct Token<'a> {
    kv: &'a [f32],
    gate: &'a [f32],
    ape: &'a [f32],
}

kernel! {
    /// `row[c]`: the mean of the candidates' values, weighted by the softmax of their gates; candidates in order.
    fn pool_channels<'a>(_lanes; candidates: &'a [(&'a [f32], &'a [f32])], row: &'a mut [f32]) -> () {
        const TILE: usize = 64;
        for (start, row) in (0..).step_by(TILE).zip(row.chunks_mut(TILE)) {
            let n = row.len();
            let (mut max, mut sum, mut acc) = ([f32::NEG_INFINITY; TILE], [0.0f32; TILE], [0.0f32; TILE]);
            for (_, gate) in candidates {
                for (m, g) in max.iter_mut().zip(&gate[start..start + n]) {
                    *m = if *g > *m { *g } else { *m };
                }
            }
            for (kv, gate) in candidates {
                let (kv, gate) = (&kv[start..start + n], &gate[start..start + n]);
                for c in 0..n {
                    let weight = exp(gate[c] - max[c]);
                    sum[c] += weight;
                    acc[c] = weight.mul_add(kv[c], acc[c]);
                }
            }
            for (r, (a, s)) in row.iter_mut().zip(acc.iter().zip(&sum)) {
                *r = a / s;
            }
        }
    }
}

kernel! {
    /// `[max, sum, acc]` per channel, from the same of the token before (`None`: none before).
    fn advance_channels<'a>(_lanes; old: Option<&'a [f32]>, token: Token<'a>, new: &'a mut [f32]) -> () {
        let width = token.kv.len();
        let (max, rest) = new.split_at_mut(width);
        let (sum, acc) = rest.split_at_mut(width);
        let (kv, gate, ape) = (token.kv, &token.gate[..width], &token.ape[..width]);
        let (sum, acc) = (&mut sum[..width], &mut acc[..width]);
        let Some(old) = old else {
            for c in 0..width {
                (max[c], sum[c], acc[c]) = (gate[c] + ape[c], 1.0, kv[c]);
            }
            return;
        };
        let (old_max, rest) = old.split_at(width);
        let (old_sum, old_acc) = rest.split_at(width);
        let (old_sum, old_acc) = (&old_sum[..width], &old_acc[..width]);
        for c in 0..width {
            let g = gate[c] + ape[c];
            let top = if g > old_max[c] { g } else { old_max[c] };
            let (fade, weight) = (exp(old_max[c] - top), exp(g - top));
            max[c] = top;
            sum[c] = old_sum[c].mul_add(fade, weight);
            acc[c] = weight.mul_add(kv[c], old_acc[c] * fade);
        }
    }
}

pub(super) fn run(op: &Compress, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let p = &op.pooling;
    context.expect("row", HEAD_DIM, p.layout.width)?;
    let compressor = Compressor::new(p, context)?;
    let row_slots = context.longs("row_slot", &p.row_slot, p.tokens.rows())?;
    let state = context.state_mut(p.state, p.state_slots * p.layout.len())?;
    let mut pool = KvPool::new(context, p.pool, p.pages, op.page_rows, op.format, op.trained)?;
    let simd = context.simd;
    compressor.run(state, &mut [0.0; HEAD_DIM], |t, row| {
        if let (Some(at), Ok(row)) = (slot(row_slots[t], op.page_rows, p.pages), row.try_into()) {
            pool.store(simd, at, row);
        }
    });
    Ok(())
}
