//! `experts`: gate/up and down.

use std::collections::BTreeSet;

use flashlane::checkpoint::WeightFormat;
use flashlane::ops::{ExpertsDown, ExpertsUp, Op};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype, Value};

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
    let gpu = [&gpu[..], &[8, 64].map(|rows| full(WeightFormat::Mxfp4, rows))].concat();
    at.pick(cpu.concat(), gpu).into_iter().flat_map(|shape| [up(shape), down(shape)]).collect()
}

/// The experts of each row, ascending; those of the first row are the first. Other nodes have others, so that few are in the cache.
fn ids(shape: Shape, node: usize) -> Vec<i32> {
    let Shape { rows, k, experts, .. } = shape;
    let row = |t: usize| {
        let mut row: Vec<i32> =
            (0..k).map(|j| ((t * 157 + t / 8 * 25 + j + node * 63) % experts) as i32).collect();
        row.sort_unstable();
        row
    };
    (0..rows).flat_map(row).collect()
}

/// `cols` columns of `matrix_rows` rows an expert. The first row alone has a stack of its own experts, no more.
fn bench(
    kernel: &'static str,
    shape: Shape,
    (matrix_rows, cols, activations): (usize, usize, usize),
    node: fn(&mut Case, Value, Shape, Vec<i32>),
) -> Bench {
    let Shape { format, rows, k, hidden, width, .. } = shape;
    let active = ids(shape, 0).into_iter().collect::<BTreeSet<_>>().len();
    let weight = active * matrix_rows * (format.row_bytes(cols) + format.scale_row_bytes(cols));
    let name = format!("{format:?} {hidden} x {width} {rows} rows {active} experts");
    let build = move |shape: Shape, copies| {
        let mut case = Case::new();
        let weight = case.noise_matrix("weight", format, shape.experts * matrix_rows, cols);
        (0..copies).for_each(|copy| node(&mut case, weight, shape, ids(shape, copy)));
        case
    };
    Bench::over(kernel, name, rows, move |rows, copies| build(Shape { rows, ..shape }, copies))
        .with_first_row(move || build(Shape { rows: 1, experts: k, ..shape }, 1))
        .moves(weight + activations, 2 * rows * k * matrix_rows * cols)
}

fn up(shape: Shape) -> Bench {
    let Shape { rows, k, hidden, width, .. } = shape;
    let activations = rows * (2 * hidden + 2 * k * width + 8 * k);
    bench("experts_up", shape, (2 * width, hidden, activations), |case, weight, shape, ids| {
        let Shape { rows, experts, k, hidden, width, .. } = shape;
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
    let Shape { rows, k, hidden, width, .. } = shape;
    let activations = rows * (2 * k * width + 4 * hidden + 4 * k);
    bench("experts_down", shape, (hidden, width, activations), |case, weight, shape, ids| {
        let Shape { rows, experts, k, hidden, width, .. } = shape;
        let (tokens, ids) = (case.rows_at(rows, 5), case.ints("ids", &ids));
        let h = case.noise("h", Dtype::Bf16, rows * k * width);
        let shared = case.noise("shared", Dtype::Bf16, rows * hidden);
        let y = case.out("y", Dtype::Bf16, rows * hidden);
        let op = ExpertsDown { tokens, h, ids, weight, shared, y, experts, k, hidden, width };
        case.op(Op::ExpertsDown(op));
    })
}
