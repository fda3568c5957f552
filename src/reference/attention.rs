//! Oracle of `attention`: a softmax over an explicit list of rows.

use super::ExecError;
use super::io::{Io, Pages};
use super::math::{Turn, dot, rope};
use super::rows::load_kv;
use crate::ops::{Attention, Compressed, HEAD_DIM, Paged, ROPE_DIM, WINDOW};

/// The compressed rows of the step, ready to look up.
enum Source<'a> {
    None,
    Selected(Pages<'a>, &'a [i32], usize),
    All(Pages<'a>),
}

pub(super) fn run(op: &Attention, io: &mut Io<'_, '_>) -> Result<(), ExecError> {
    let (rows, heads) = (op.tokens.rows(), op.heads);
    let positions = io.positions(&op.tokens)?;
    let q = io.real("q", &op.q, rows * heads * HEAD_DIM)?;
    let sink = io.weight("sink", &op.sink, heads)?;
    let table = io.weight("rope", &op.rope, op.max_positions * ROPE_DIM)?;
    let window = io.pages(&op.tokens, &op.window)?;
    let compressed = match &op.compressed {
        Compressed::None => Source::None,
        Compressed::Selected { rows: paged, selected, k } => {
            Source::Selected(io.pages(&op.tokens, paged)?, io.ints("selected", selected, rows * k)?, *k)
        }
        Compressed::All { rows } => Source::All(io.pages(&op.tokens, rows)?),
    };
    let mut out = io.sink("out", &op.out, rows * heads * HEAD_DIM)?;
    for (t, position) in positions.iter().enumerate() {
        let keys = position.map_or_else(Vec::new, |p| {
            let request = t / op.tokens.per_request;
            let mut keys = gather(op, &op.window, &window, request, (p + 1).saturating_sub(WINDOW)..p + 1);
            keys.extend(compressed_rows(op, &compressed, t, request, p));
            keys
        });
        for (h, &sink) in sink.iter().enumerate() {
            let at = t * heads + h;
            let q = &q[at * HEAD_DIM..(at + 1) * HEAD_DIM];
            let mut o = weigh(q, &keys, f64::from(op.scale), sink);
            if let Some(p) = *position {
                rope(&mut o, table, p, op.max_positions, Turn::Inverse);
            }
            out.set_row(at, &o);
        }
    }
    Ok(())
}

/// The rows that exist among `wanted`, in that order.
fn gather(
    op: &Attention,
    paged: &Paged,
    pages: &Pages<'_>,
    request: usize,
    wanted: impl IntoIterator<Item = usize>,
) -> Vec<Vec<f64>> {
    let page_bytes = op.format.page_bytes(paged.page_rows);
    wanted
        .into_iter()
        .filter_map(|row| pages.find(request, row, page_bytes))
        .map(|(page, place)| load_kv(page, place, paged.page_rows, op.format))
        .collect()
}

fn compressed_rows(
    op: &Attention,
    source: &Source<'_>,
    t: usize,
    request: usize,
    position: usize,
) -> Vec<Vec<f64>> {
    match (source, &op.compressed) {
        (Source::Selected(pages, selected, k), Compressed::Selected { rows, .. }) => {
            let visible = (position + 1) / 4;
            let chosen = selected[t * k..(t + 1) * k].iter().filter_map(|&r| usize::try_from(r).ok());
            gather(op, rows, pages, request, chosen.filter(|&r| r < visible))
        }
        (Source::All(pages), Compressed::All { rows }) => {
            let visible = ((position + 1) / 128).min(rows.max_rows());
            gather(op, rows, pages, request, 0..visible)
        }
        _ => Vec::new(),
    }
}

/// `sum_r p_r row_r`, p the softmax of `scale q . row_r` with `sink` one more term of its denominator.
fn weigh(q: &[f64], keys: &[Vec<f64>], scale: f64, sink: f64) -> Vec<f64> {
    let scores: Vec<f64> = keys.iter().map(|key| scale * dot(q, key)).collect();
    let max = scores.iter().fold(sink, |m, &s| m.max(s));
    let sum: f64 = (sink - max).exp() + scores.iter().map(|s| (s - max).exp()).sum::<f64>();
    let mut out = vec![0.0; q.len()];
    for (key, score) in keys.iter().zip(&scores) {
        let p = (score - max).exp() / sum;
        out.iter_mut().zip(key).for_each(|(o, v)| *o += p * v);
    }
    out
}
