//! `linear` in each weight format, for one row, batches and a prefill block.

use flashlane::checkpoint::WeightFormat;
use flashlane::ops::{Epilogue, Linear, Op};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype};

pub(crate) fn benches(at: At) -> Vec<Bench> {
    // The largest projections of the built-in model and one of the full model's; on a GPU one of the full model's.
    let sizes: &[_] = at.pick(&[(128, 4096), (2048, 256), (4096, 1024)], &[(4096, 4096)]);
    let rows: &[_] = at.pick(&[1, 8, 256], &[1, 8, 64, 256]);
    let formats = [WeightFormat::Nvfp4, WeightFormat::Fp8Block, WeightFormat::Bf16];
    let shapes = sizes.iter().flat_map(|&size| rows.iter().map(move |&rows| (size, rows)));
    shapes.flat_map(|((cols, out), rows)| formats.map(|format| bench(format, rows, cols, out))).collect()
}

fn bench(format: WeightFormat, rows: usize, cols: usize, out: usize) -> Bench {
    let weight =
        out * format.row_bytes(cols) + out.div_ceil(format.scale_rows()) * format.scale_row_bytes(cols);
    let shape = format!("{format:?} {rows} x {cols} to {out}");
    Bench::new("linear", shape, rows, move |case, rows| node(case, format, (rows, cols, out)))
        .moves(weight + 2 * rows * (cols + out), 2 * rows * cols * out)
        .launched(8)
}

/// One projection of bf16 rows.
pub(crate) fn node(
    case: &mut Case,
    format: WeightFormat,
    (rows, cols_in, weight_rows): (usize, usize, usize),
) {
    let weight = case.noise_matrix("weight", format, weight_rows, cols_in);
    let x = case.noise("x", Dtype::Bf16, rows * cols_in);
    let out = case.out("out", Dtype::Bf16, rows * weight_rows);
    let epilogue = Epilogue::None;
    case.op(Op::Linear(Linear { x, weight, out, rows, cols_in, weight_rows, groups: 1, epilogue }));
}
