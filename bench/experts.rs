//! `experts`: gate/up and down.

use std::collections::BTreeSet;

use flashlane::checkpoint::WeightFormat;
use flashlane::ops::{ExpertsDown, ExpertsUp, Op};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype};

#[derive(Clone, Copy)]
struct Shape {
    format: WeightFormat,
    rows: usize,
    experts: usize,
    k: usize,
    hidden: usize,
    width: usize,
}

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let small =
        |hidden, width, rows| Shape { format: WeightFormat::Nvfp4, rows, experts: 8, k: 2, hidden, width };
    let full = |format, rows| Shape { format, rows, experts: 256, k: 6, hidden: 4096, width: 2048 };
    let cpu =
        [(256, 128), (1024, 512)].map(|(hidden, width)| [1, 8, 256].map(|rows| small(hidden, width, rows)));
    let gpu = [1, 8, 64].map(|rows| full(WeightFormat::Nvfp4, rows));
    let gpu = [&gpu[..], &[full(WeightFormat::Mxfp4, 8)]].concat();
    at.pick(cpu.concat(), gpu).into_iter().flat_map(|shape| [up(shape), down(shape)]).collect()
}

/// The experts of a row, ascending; other experts for other nodes, so that few of them are in the cache.
fn ids(shape: Shape, rows: usize, node: usize) -> Vec<i32> {
    let Shape { k, experts, .. } = shape;
    let id = |t: usize, j: usize| (t * 37 + j * (experts / k - 1) + t / 8 + node * 63) % experts;
    let row = |t| {
        let mut row: Vec<i32> = (0..k).map(|j| id(t, j) as i32).collect();
        row.sort_unstable();
        row
    };
    (0..rows).flat_map(row).collect()
}

/// Experts that the rows of a node go to.
fn active(shape: Shape) -> usize {
    ids(shape, shape.rows, 0).into_iter().collect::<BTreeSet<_>>().len()
}

fn bench(
    kernel: &'static str,
    shape: Shape,
    (matrix_rows, cols, activations): (usize, usize, usize),
    node: impl Fn(&mut Case, crate::support::Value, usize, Vec<i32>) + 'static,
) -> Bench {
    let Shape { format, rows, experts, k, hidden, width } = shape;
    let active = active(shape);
    let weight = active * matrix_rows * (format.row_bytes(cols) + format.scale_row_bytes(cols));
    let name = format!("{format:?} {hidden} x {width} {rows} rows {active} experts");
    let build = move |rows, copies| {
        let mut case = Case::new();
        let weight = case.noise_matrix("weight", format, experts * matrix_rows, cols);
        (0..copies).for_each(|copy| node(&mut case, weight, rows, ids(shape, rows, copy)));
        case
    };
    Bench::over(kernel, name, rows, build).moves(weight + activations, 2 * rows * k * matrix_rows * cols)
}

fn up(shape: Shape) -> Bench {
    let Shape { rows, experts, k, hidden, width, .. } = shape;
    let activations = rows * (2 * hidden + 2 * k * width + 8 * k);
    bench("experts_up", shape, (2 * width, hidden, activations), move |case, weight, rows, ids| {
        let (tokens, ids) = (case.rows_at(rows, 5), case.ints("ids", &ids));
        let x = case.noise("x", Dtype::Bf16, rows * hidden);
        let weights = case.noise("weights", Dtype::F32, rows * k);
        let h = case.out("h", Dtype::Bf16, rows * k * width);
        let limit = 10.0;
        let op = ExpertsUp { tokens, x, ids, weights, weight, h, experts, k, hidden, width, limit };
        case.op(Op::ExpertsUp(op));
    })
}

fn down(shape: Shape) -> Bench {
    let Shape { rows, experts, k, hidden, width, .. } = shape;
    let activations = rows * (2 * k * width + 4 * hidden + 4 * k);
    bench("experts_down", shape, (hidden, width, activations), move |case, weight, rows, ids| {
        let (tokens, ids) = (case.rows_at(rows, 5), case.ints("ids", &ids));
        let h = case.noise("h", Dtype::Bf16, rows * k * width);
        let shared = case.noise("shared", Dtype::Bf16, rows * hidden);
        let y = case.out("y", Dtype::Bf16, rows * hidden);
        case.op(Op::ExpertsDown(ExpertsDown {
            tokens,
            h,
            ids,
            weight,
            shared,
            y,
            experts,
            k,
            hidden,
            width,
        }));
    })
}
