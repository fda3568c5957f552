//! The operations that read large weights: routed experts and linear.

use flashlane::cuda::{CudaError, IndexReader, MatrixFormat};
use flashlane::ops::{Dtype, Epilogue, ExpertsDown, ExpertsUp, Linear, Op};

use super::{Bench, HIDDEN, Suite};

impl Suite {
    pub(super) fn experts(&mut self, format: MatrixFormat, rows: usize) -> Result<(), CudaError> {
        let (experts, k, width) = (256, 6, 2048);
        let ids: Vec<i32> =
            (0..rows * k).map(|i| ((i / k * 37 + i % k * 41 + i / k / 8) % experts) as i32).collect();
        let mut sorted = ids.clone();
        sorted.chunks_mut(k).for_each(<[i32]>::sort_unstable);
        let active = sorted.iter().collect::<std::collections::BTreeSet<_>>().len();
        let (mut up, mut down) = (Bench::new(&self.backend), Bench::new(&self.backend));
        let weight = up.matrix(format, experts, 2 * width, HIDDEN)?;
        for shift in 0..4 {
            // Other experts in each node, so that a few of them are not found in the cache.
            let ids: Vec<i32> = sorted.iter().map(|&i| (i + shift * 63) % experts as i32).collect();
            let tokens = up.tokens(rows, 5);
            let ids = up.ints(&ids);
            let (x, weights) = (up.real(Dtype::Bf16, rows * HIDDEN), up.real(Dtype::F32, rows * k));
            let h = up.out(Dtype::Bf16, rows * k * width);
            up.node(Op::ExpertsUp(ExpertsUp {
                tokens,
                x,
                ids,
                weights,
                weight,
                h,
                experts,
                k,
                hidden: HIDDEN,
                width,
                limit: 10.0,
            }));
        }
        let (codes, scales) = format.bytes(2 * width, HIDDEN);
        let shape = format!("{format:?} {rows} rows, {active} experts");
        self.add("experts_up", shape.clone(), active * (codes + scales), up, IndexReader::Fast)?;
        let weight = down.matrix(format, experts, HIDDEN, width)?;
        for shift in 0..4 {
            let ids: Vec<i32> = sorted.iter().map(|&i| (i + shift * 63) % experts as i32).collect();
            let tokens = down.tokens(rows, 5);
            let ids = down.ints(&ids);
            let (h, shared) =
                (down.real(Dtype::Bf16, rows * k * width), down.real(Dtype::Bf16, rows * HIDDEN));
            let y = down.out(Dtype::Bf16, rows * HIDDEN);
            down.node(Op::ExpertsDown(ExpertsDown {
                tokens,
                h,
                ids,
                weight,
                shared,
                y,
                experts,
                k,
                hidden: HIDDEN,
                width,
            }));
        }
        let (codes, scales) = format.bytes(HIDDEN, width);
        self.add("experts_down", shape, active * (codes + scales), down, IndexReader::Fast)
    }

    pub(super) fn linear(
        &mut self,
        format: MatrixFormat,
        rows: usize,
        out: usize,
        depth: usize,
    ) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        for _ in 0..8 {
            let weight = b.matrix(format, 1, out, depth)?;
            let x = b.real(Dtype::Bf16, rows * depth);
            let y = b.out(Dtype::Bf16, rows * out);
            let epilogue = Epilogue::None;
            b.node(Op::Linear(Linear {
                x,
                weight,
                out: y,
                rows,
                cols_in: depth,
                weight_rows: out,
                groups: 1,
                epilogue,
            }));
        }
        let (codes, scales) = format.bytes(out, depth);
        let bytes = codes + scales + 2 * rows * (depth + out);
        self.add("linear", format!("{format:?} {rows} x {depth} -> {out}"), bytes, b, IndexReader::Fast)
    }
}
