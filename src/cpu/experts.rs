//! `experts`: the routed experts. Tokens of one expert share its decoded weights; each sum is the same canonical dot product
//! whoever shares, and a token adds up its experts in its own order.

use std::ops::Range;

use rayon::prelude::*;

use super::ExecError;
use super::context::Context;
use super::linear::WEIGHT_TILE;
use super::math::{round_bf16, swiglu_row};
use super::products::{Inputs, Strides, matmul};
use super::rows::{Rows, with_buffer, with_scratch, worth_sharing};
use super::simd::Simd;
use super::weights::Numbers;
use crate::ops::{Dtype, ExpertsDown, ExpertsUp};

/// Weight rows of one task.
const TASK_ROWS: usize = 4 * WEIGHT_TILE;

/// The slots (token row times `k` plus choice) of each expert that has any, ascending.
fn by_expert(ids: &[i32], experts: usize) -> Vec<(usize, Vec<usize>)> {
    let mut all: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut place = vec![usize::MAX; experts];
    for (slot, &id) in ids.iter().enumerate() {
        let Some(e) = usize::try_from(id).ok().filter(|&e| e < experts) else { continue };
        if place[e] == usize::MAX {
            place[e] = all.len();
            all.push((e, Vec::new()));
        }
        all[place[e]].1.push(slot);
    }
    all
}

/// A share of one expert's products.
struct Task<'a> {
    expert: usize,
    slots: &'a [usize],
    /// Rows of the expert's matrix.
    rows: Range<usize>,
}

/// Products `[slot, row]` of the matrices of `rows` rows with an input row for each slot: `sums[slot * rows + row]`.
fn products(
    simd: Simd,
    weight: Numbers<'_>,
    rows: usize,
    groups: &[(usize, Vec<usize>)],
    slots: usize,
    x: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let depth = weight.shape().1;
    let tasks: Vec<Task<'_>> = groups
        .iter()
        .flat_map(|(expert, slots)| {
            (0..rows).step_by(TASK_ROWS).map(|first| {
                let rows = first..(first + TASK_ROWS).min(rows);
                Task { expert: *expert, slots, rows }
            })
        })
        .collect();
    let work = tasks.iter().map(|t| (t.slots.len() + 4) * t.rows.len() * depth).sum();
    let run = |task: &Task<'_>| {
        let mut out = vec![0.0; task.slots.len() * task.rows.len()];
        with_scratch(task.slots.len() * depth, |inputs| {
            for (slot, row) in task.slots.iter().zip(inputs.chunks_exact_mut(depth)) {
                x(*slot, row);
            }
            task_products(simd, weight, rows, task, inputs, &mut out);
        });
        out
    };
    let parts: Vec<Vec<f32>> = if worth_sharing(work, tasks.len()) {
        tasks.par_iter().map(run).collect()
    } else {
        tasks.iter().map(run).collect()
    };
    let mut sums = vec![0.0; slots * rows];
    for (task, part) in tasks.iter().zip(&parts) {
        for (slot, part) in task.slots.iter().zip(part.chunks_exact(task.rows.len())) {
            sums[slot * rows..(slot + 1) * rows][task.rows.clone()].copy_from_slice(part);
        }
    }
    sums
}

fn task_products(simd: Simd, weight: Numbers<'_>, rows: usize, task: &Task<'_>, x: &[f32], out: &mut [f32]) {
    let depth = weight.shape().1;
    let to = Strides { w: 1, x: task.rows.len() };
    with_buffer(|buffer| {
        for first in task.rows.clone().step_by(WEIGHT_TILE) {
            let end = (first + WEIGHT_TILE).min(task.rows.end);
            let at = task.expert * rows;
            let w = weight.decode(simd, at + first..at + end, buffer);
            matmul(simd, w, Inputs::dense(x, depth), &mut out[first - task.rows.start..], to);
        }
    });
}

pub(super) fn up(op: &ExpertsUp, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, simd) = (op.tokens.rows(), context.simd);
    let slots = rows * op.k;
    let x = context.rows("x", &op.x, rows * op.hidden)?;
    let ids = context.ints("ids", &op.ids, slots)?;
    let weights = context.f32s("weights", &op.weights, slots)?;
    let weight = context.matrix("weight", &op.weight, op.experts * 2 * op.width, op.hidden)?;
    let h = context.rows_mut("h", &op.h, slots * op.width)?;
    let groups = by_expert(ids, op.experts);
    let input = |slot: usize, row: &mut [f32]| x.copy_to(simd, slot / op.k * op.hidden, row);
    let mut sums = products(simd, weight, 2 * op.width, &groups, slots, input);
    if op.x.dtype == Dtype::Bf16 {
        round_bf16(simd, &mut sums);
    }
    h.fill(simd, op.width, 8 * slots * op.width, |slot, out| {
        if usize::try_from(ids[slot]).is_ok_and(|e| e < op.experts) {
            let (gate, up) = sums[2 * slot * op.width..2 * (slot + 1) * op.width].split_at(op.width);
            swiglu_row(simd, gate, up, op.limit, weights[slot], out);
        } else {
            out.fill(0.0);
        }
    });
    Ok(())
}

pub(super) fn down(op: &ExpertsDown, context: &mut Context<'_, '_>) -> Result<(), ExecError> {
    let (rows, simd) = (op.tokens.rows(), context.simd);
    let slots = rows * op.k;
    let h: Rows<'_> = context.rows("h", &op.h, slots * op.width)?;
    let ids = context.ints("ids", &op.ids, slots)?;
    let weight = context.matrix("weight", &op.weight, op.experts * op.hidden, op.width)?;
    let shared = context.rows("shared", &op.shared, rows * op.hidden)?;
    let y = context.rows_mut("y", &op.y, rows * op.hidden)?;
    let groups = by_expert(ids, op.experts);
    let input = |slot: usize, row: &mut [f32]| h.copy_to(simd, slot * op.width, row);
    let parts = products(simd, weight, op.hidden, &groups, slots, input);
    y.fill(simd, op.hidden, (op.k + 1) * rows * op.hidden, |t, out| {
        out.fill(0.0);
        for slot in t * op.k..(t + 1) * op.k {
            if usize::try_from(ids[slot]).is_ok_and(|e| e < op.experts) {
                add(out, &parts[slot * op.hidden..(slot + 1) * op.hidden]);
            }
        }
        add(out, &shared.load(simd, t * op.hidden..(t + 1) * op.hidden));
    });
    Ok(())
}

fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
}
