//! Oracle of `compress`, and the pooling that `index_store` shares with it (model.md 2.5).
//!
//! The state is f32 memory, so it is rounded after every token, as the operation defines; everything between is f64.

use super::ExecError;
use super::io::Io;
use super::math::{Turn, rms_norm, rope};
use super::rows::{Pool, store_kv};
use crate::ops::{
    Compress, HEAD_DIM, Pooling, ROPE_DIM, StateLayout, Tokens, c4_state_slot, c128_state_slot,
};

pub(super) fn run(op: &Compress, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let p = &op.pooling;
    io.expect_width(HEAD_DIM, p.layout.width)?;
    let compressor = Compressor::new(p, io)?;
    let row_slots = io.longs("row_slot", &p.row_slot, p.tokens.rows())?;
    let finished = compressor.run(io.state_mut(p.state, p.state_slots * p.layout.len())?);
    let page_bytes = op.format.page_bytes(op.page_rows);
    let mut pool = Pool::new(io.buffer_mut(p.pool)?, p.pages, op.page_rows, page_bytes);
    for (t, row) in finished {
        if let Some((page, place)) = pool.find(row_slots[t]) {
            store_kv(&row, page, place, op.page_rows, op.format, op.trained);
        }
    }
    Ok(())
}

/// Everything that turns projections into rows.
pub(super) struct Compressor<'a> {
    layout: StateLayout,
    tokens: Tokens,
    positions: Vec<Option<usize>>,
    kvg: Vec<f64>,
    ape: &'a [f64],
    norm: &'a [f64],
    rope: &'a [f64],
    max_positions: usize,
    eps: f32,
    slots: &'a [i32],
    num_slots: usize,
}

impl<'a, 'w: 'a> Compressor<'a> {
    pub(super) fn new(p: &Pooling, io: &Io<'a, 'w>) -> Result<Self, ExecError> {
        let (rows, projection) = (p.tokens.rows(), p.layout.projection());
        Ok(Self {
            layout: p.layout,
            tokens: p.tokens,
            positions: io.positions(&p.tokens)?,
            kvg: io.real("kvg", &p.kvg, rows * projection)?,
            ape: io.weight("ape", &p.ape, p.layout.ratio * projection / 2)?,
            norm: io.weight("norm", &p.norm, p.layout.width)?,
            rope: io.weight("rope", &p.rope, p.max_positions * ROPE_DIM)?,
            max_positions: p.max_positions,
            eps: p.eps,
            slots: io.ints("state_slot", &p.state_slot, p.tokens.requests)?,
            num_slots: p.state_slots,
        })
    }

    /// Updates the state with every token; gives the rows that were completed, each with the token that did.
    pub(super) fn run(&self, state: &mut [f32]) -> Vec<(usize, Vec<f64>)> {
        let StateLayout { ratio, width } = self.layout;
        let mut finished = Vec::new();
        for t in 0..self.tokens.rows() {
            let slot = usize::try_from(self.slots[t / self.tokens.per_request]).ok();
            let (Some(position), Some(slot)) = (self.positions[t], slot.filter(|&s| s < self.num_slots))
            else {
                continue;
            };
            let state = &mut state[slot * self.layout.len()..(slot + 1) * self.layout.len()];
            let (kv, gate) = self.token(t, position);
            let pooled = if ratio == 4 {
                update_c4(state, width, position, &kv, &gate)
            } else {
                update_c128(state, width, position, &kv, &gate)
            };
            if (position + 1).is_multiple_of(ratio) {
                let mut row = rms_norm(&pooled, self.norm, self.eps);
                rope(&mut row, self.rope, position / ratio * ratio, self.max_positions, Turn::Forward);
                finished.push((t, row));
            }
        }
        finished
    }

    /// A token's projections, the gate with the absolute position embedding added in f32.
    fn token(&self, t: usize, position: usize) -> (Vec<f64>, Vec<f64>) {
        let columns = self.layout.projection() / 2;
        let (kv, gate) = self.kvg[t * 2 * columns..(t + 1) * 2 * columns].split_at(columns);
        let ape = &self.ape[position % self.layout.ratio * columns..][..columns];
        (kv.to_vec(), gate.iter().zip(ape).map(|(g, a)| f64::from((g + a) as f32)).collect())
    }
}

/// Keeps the token, then pools the A halves of the four tokens before its own four and the B halves of its own: at the
/// last of the four, the row that it completes.
fn update_c4(state: &mut [f32], width: usize, position: usize, kv: &[f64], gate: &[f64]) -> Vec<f64> {
    let columns = 2 * width;
    let start = c4_state_slot(position) * 2 * columns;
    for c in 0..columns {
        state[start + c] = kv[c] as f32;
        state[start + columns + c] = gate[c] as f32;
    }
    let first = position / 4 * 4;
    let candidates = |c: usize| {
        let previous = (first.saturating_sub(4)..first).map(move |p| (p, c));
        previous.chain((first..first + 4).map(move |p| (p, width + c))).map(|(p, column)| {
            let at = c4_state_slot(p) * 2 * columns + column;
            (f64::from(state[at]), f64::from(state[at + columns]))
        })
    };
    (0..width).map(|c| softmax_mean(candidates(c))).collect()
}

/// The mean of the first elements, weighted by the softmax of the second.
fn softmax_mean(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let max = pairs.clone().fold(f64::NEG_INFINITY, |m, (_, g)| m.max(g));
    let sum: f64 = pairs.clone().map(|(_, g)| (g - max).exp()).sum();
    pairs.map(|(v, g)| (g - max).exp() * v).sum::<f64>() / sum
}

/// Advances the running softmax of each channel; its mean so far is the row at the last of 128 tokens.
fn update_c128(state: &mut [f32], width: usize, position: usize, kv: &[f64], gate: &[f64]) -> Vec<f64> {
    let slot = |p: usize| c128_state_slot(p) * 3 * width;
    (0..width)
        .map(|c| {
            let (mut max, mut sum, mut acc) = (f64::NEG_INFINITY, 0.0, 0.0);
            if !position.is_multiple_of(128) {
                let old = slot(position - 1) + c;
                max = f64::from(state[old]);
                sum = f64::from(state[old + width]);
                acc = f64::from(state[old + 2 * width]);
            }
            let top = max.max(gate[c]);
            let (fade, weight) = ((max - top).exp(), (gate[c] - top).exp());
            let new = [top, sum * fade + weight, acc * fade + weight * kv[c]];
            for (i, v) in new.into_iter().enumerate() {
                state[slot(position) + i * width + c] = v as f32;
            }
            new[2] / new[1]
        })
        .collect()
}
