//! `linear`: rows times a weight in any format.
//!
//! Every output is one canonical dot product, so how the outputs are cut up is free: few rows are spread over weight rows,
//! many rows over tiles of rows, each of which decodes the weight again (a thirtieth of its work).

use super::ExecError;
use super::context::Context;
use super::math::{round_bf16, swiglu_row};
use super::products::{Inputs, Strides, matmul};
use super::rows::{RowsMut, for_chunks, with_buffer, with_scratch};
use super::simd::Simd;
use super::weights::Numbers;
use crate::ops::{Dtype, Epilogue, Linear};

/// Weight rows that are decoded together.
pub(super) const WEIGHT_TILE: usize = 16;
/// From this many rows on, tasks are tiles of rows.
const MANY_ROWS: usize = 32;
/// The largest tile of rows, so that its activations stay in the cache.
const ROW_TILE: usize = 64;

/// The operation with its weight at hand.
struct Job<'a> {
    op: &'a Linear,
    weight: Numbers<'a>,
    x: &'a [f32],
    /// Columns of a group of the input, and rows of a group of the weight.
    depth: usize,
    group_rows: usize,
    simd: Simd,
}

pub(super) fn run(op: &Linear, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    if op.groups == 0 || !op.cols_in.is_multiple_of(op.groups) || !op.weight_rows.is_multiple_of(op.groups) {
        let expected = "a divisor of both widths";
        return Err(ExecError::Dimension { op: "linear", dimension: "groups", expected, found: op.groups });
    }
    let (depth, group_rows) = (op.cols_in / op.groups, op.weight_rows / op.groups);
    let x = context.rows("x", &op.x, op.rows * op.cols_in)?;
    let weight = context.matrix("weight", &op.weight, op.weight_rows, depth)?;
    let out = context.rows_mut("out", &op.out, op.rows * op.cols_out())?;
    let x = x.load(context.simd, 0..op.rows * op.cols_in);
    let job = Job { op, weight, x: &x, depth, group_rows, simd: context.simd };
    if op.rows >= MANY_ROWS {
        job.by_rows(out);
    } else {
        job.by_columns(out);
    }
    Ok(())
}

impl Job<'_> {
    fn work(&self) -> usize {
        // Decoding a weight costs about as much as two multiply-adds of a vector.
        (self.op.rows + 4) * self.op.weight_rows * self.depth
    }

    fn by_rows(&self, out: RowsMut<'_>) {
        let op = self.op;
        let share = op.rows.div_ceil(rayon::current_num_threads()).next_multiple_of(8);
        let tile = share.clamp(8, ROW_TILE);
        out.fill(self.simd, tile * op.cols_out(), self.work(), |task, out| {
            let rows = task * tile..(task * tile + tile).min(op.rows);
            if op.epilogue == Epilogue::None {
                let to = Strides { w: 1, x: op.weight_rows };
                self.products(rows, 0..op.weight_rows, out, to);
                return;
            }
            with_scratch(rows.len() * op.weight_rows, |sums| {
                self.products(rows, 0..op.weight_rows, sums, Strides { w: 1, x: op.weight_rows });
                for (sums, out) in
                    sums.chunks_exact_mut(op.weight_rows).zip(out.chunks_exact_mut(op.cols_out()))
                {
                    self.finish(sums, out);
                }
            });
        });
    }

    fn by_columns(&self, out: RowsMut<'_>) {
        let op = self.op;
        with_scratch(2 * op.weight_rows * op.rows, |scratch| {
            let (sums, row) = scratch.split_at_mut(op.weight_rows * op.rows);
            for_chunks(sums, WEIGHT_TILE * op.rows, self.work(), |task, sums| {
                let first = task * WEIGHT_TILE;
                let columns = first..first + sums.len() / op.rows;
                self.products(0..op.rows, columns, sums, Strides { w: op.rows, x: 1 });
            });
            transpose(sums, op.rows, row);
            let rows = &*row;
            out.fill(self.simd, op.cols_out(), 0, |r, out| {
                let sums = &rows[r * op.weight_rows..(r + 1) * op.weight_rows];
                if op.epilogue == Epilogue::None {
                    out.copy_from_slice(sums);
                } else {
                    with_scratch(sums.len(), |copy| {
                        copy.copy_from_slice(sums);
                        self.finish(copy, out);
                    });
                }
            });
        });
    }

    /// The products of some rows with some weight rows; the first of each goes to the start of `out`.
    fn products(
        &self,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
        out: &mut [f32],
        to: Strides,
    ) {
        with_buffer(|buffer| {
            let mut first = columns.start;
            while first < columns.end {
                let group = first / self.group_rows;
                let end = (first + WEIGHT_TILE).min(columns.end).min((group + 1) * self.group_rows);
                let w = self.weight.decode(self.simd, first..end, buffer);
                let values = &self.x[rows.start * self.op.cols_in + group * self.depth..];
                let x = Inputs { values, width: self.depth, stride: self.op.cols_in, count: rows.len() };
                let out = &mut out[(first - columns.start) * to.w..];
                matmul(self.simd, w, x, out, to);
                first = end;
            }
        });
    }

    /// A row of sums to a row of outputs.
    fn finish(&self, sums: &mut [f32], out: &mut [f32]) {
        let Epilogue::SwiGlu { limit } = self.op.epilogue else { return out.copy_from_slice(sums) };
        if self.op.x.dtype == Dtype::Bf16 {
            round_bf16(self.simd, sums);
        }
        let (gate, up) = sums.split_at(out.len());
        swiglu_row(self.simd, gate, up, limit, 1.0, out);
    }
}

/// `[columns, rows]` to `[rows, columns]`.
fn transpose(from: &[f32], rows: usize, to: &mut [f32]) {
    if rows == 1 {
        return to.copy_from_slice(from);
    }
    let columns = from.len() / rows.max(1);
    for (r, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        for (t, from) in to.iter_mut().zip(from[r..].iter().step_by(rows)) {
            *t = *from;
        }
    }
}
