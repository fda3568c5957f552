//! The small operations around the big ones.

use flashlane::cuda::{CudaError, IndexReader};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{
    Dtype, HyperPost, HyperPre, IndexQuery, Op, Query, RmsNorm, RopeStore, Router, Routing,
};

use super::{Bench, HIDDEN, MAX_POSITIONS, Suite};

impl Suite {
    /// The small operations around the big ones, at `rows` tokens.
    pub(super) fn small(&mut self, rows: usize) -> Result<(), CudaError> {
        self.rmsnorm(rows)?;
        self.hyper_pre(rows)?;
        self.hyper_post(rows)?;
        self.query(rows)?;
        self.rope_store(rows)?;
        self.index_query(rows)?;
        self.router(rows)
    }

    fn rmsnorm(&mut self, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let weight = b.floats(HIDDEN)?;
        for _ in 0..8 {
            let (x, out) = (b.real(Dtype::Bf16, rows * HIDDEN), b.out(Dtype::Bf16, rows * HIDDEN));
            b.node(Op::RmsNorm(RmsNorm { x, weight, out, rows, width: HIDDEN, eps: 1e-6 }));
        }
        self.add("rmsnorm", format!("{rows} rows"), 4 * rows * HIDDEN, b, IndexReader::Fast)
    }

    fn hyper_pre(&mut self, rows: usize) -> Result<(), CudaError> {
        let (n, hidden) = (4, HIDDEN);
        let mut b = Bench::new(&self.backend);
        let (mix, base, scale, norm) =
            (b.floats(24 * n * hidden)?, b.floats(24)?, b.floats(3)?, b.floats(hidden)?);
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let streams = b.real(Dtype::Bf16, rows * n * hidden);
            let (out, post) = (b.out(Dtype::Bf16, rows * hidden), b.out(Dtype::F32, rows * n));
            let comb = b.out(Dtype::F32, rows * n * n);
            b.node(Op::HyperPre(HyperPre {
                tokens,
                streams,
                mix,
                base,
                scale,
                norm,
                out,
                post,
                comb,
                n,
                hidden,
                sinkhorn_iters: 20,
                eps: 1e-6,
                hc_eps: 1e-6,
            }));
        }
        self.add(
            "hyper_pre",
            format!("{rows} rows"),
            4 * 24 * n * hidden + rows * (2 * n + 2) * hidden,
            b,
            IndexReader::Fast,
        )
    }

    fn hyper_post(&mut self, rows: usize) -> Result<(), CudaError> {
        let (n, hidden) = (4, HIDDEN);
        let mut b = Bench::new(&self.backend);
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let (streams, y) = (b.real(Dtype::Bf16, rows * n * hidden), b.real(Dtype::Bf16, rows * hidden));
            let (post, comb) = (b.real(Dtype::F32, rows * n), b.real(Dtype::F32, rows * n * n));
            let out = b.out(Dtype::Bf16, rows * n * hidden);
            b.node(Op::HyperPost(HyperPost { tokens, streams, y, post, comb, out, n, hidden }));
        }
        self.add("hyper_post", format!("{rows} rows"), rows * (4 * n + 2) * hidden, b, IndexReader::Fast)
    }

    fn query(&mut self, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let rope = b.floats(MAX_POSITIONS * 64)?;
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let (q, out) = (b.real(Dtype::Bf16, rows * 64 * 512), b.out(Dtype::Bf16, rows * 64 * 512));
            b.node(Op::Query(Query {
                tokens,
                q,
                rope,
                out,
                heads: 64,
                max_positions: MAX_POSITIONS,
                eps: 1e-6,
            }));
        }
        self.add("query", format!("{rows} rows"), rows * 64 * 512 * 4, b, IndexReader::Fast)
    }

    fn rope_store(&mut self, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let (norm, rope) = (b.floats(512)?, b.floats(MAX_POSITIONS * 64)?);
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let kv = b.real(Dtype::Bf16, rows * 512);
            let slot = b.longs(&(0..rows as i64).collect::<Vec<_>>());
            let (format, pages) = (KvFormat::Fp8, rows.div_ceil(64));
            let pool = b.pool(vec![0; pages * format.page_bytes(64)]);
            b.node(Op::RopeStore(RopeStore {
                tokens,
                kv,
                norm,
                rope,
                slot,
                pool,
                pages,
                format,
                trained: true,
                max_positions: MAX_POSITIONS,
                eps: 1e-6,
            }));
        }
        self.add("rope_store", format!("{rows} rows"), rows * (1024 + 584), b, IndexReader::Fast)
    }

    fn index_query(&mut self, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let rope = b.floats(MAX_POSITIONS * 64)?;
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let q = b.real(Dtype::Bf16, rows * 64 * 128);
            let (codes, scales) = (b.out(Dtype::U8, rows * 64 * 128), b.out(Dtype::U8, rows * 64 * 4));
            b.node(Op::IndexQuery(IndexQuery {
                tokens,
                q,
                rope,
                codes,
                scales: Some(scales),
                heads: 64,
                format: IndexFormat::Fp8,
                max_positions: MAX_POSITIONS,
            }));
        }
        self.add("index_query", format!("{rows} rows"), rows * 64 * (256 + 132), b, IndexReader::Fast)
    }

    fn router(&mut self, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let bias = b.floats(256)?;
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let logits = b.real(Dtype::F32, rows * 256);
            let (ids, weights) = (b.out(Dtype::I32, rows * 6), b.out(Dtype::F32, rows * 6));
            let routing = Routing::Scored { bias };
            b.node(Op::Router(Router {
                tokens,
                logits,
                routing,
                ids,
                weights,
                experts: 256,
                k: 6,
                factor: 1.5,
            }));
        }
        self.add("router", format!("{rows} rows"), rows * (1024 + 48), b, IndexReader::Fast)
    }
}
