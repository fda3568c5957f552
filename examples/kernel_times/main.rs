//! Times of the kernels on this machine's GPU, as JSON: `cargo run --release -p flashlane --features cuda --example kernel_times`.
//! Names after `--` (`index_logits topk …`, as in [`Suite::all`]) choose some of them.
//!
//! Each case is a step of several nodes over distinct data, captured and replayed; the second-level cache is cleared before
//! each replay, and the median of the replays, divided by the nodes, is the figure: launch gaps inside the graph count. Beside
//! it the bytes that must move. Values are random and not judged: the property tests do that.

mod attention;
mod bench;
mod index;
mod matrices;
mod small;

use std::sync::Arc;

use bench::Bench;
use flashlane::cuda::{Backend, CudaError, Gpu, IndexReader, MatrixFormat};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;

const REPEATS: usize = 9;
const HIDDEN: usize = 4096;
const MAX_POSITIONS: usize = 4096;

struct Case {
    kernel: String,
    shape: String,
    bytes: f64,
    micros: f32,
}

struct Suite {
    backend: Arc<dyn Backend>,
    cases: Vec<Case>,
    /// Empty: all.
    wanted: Vec<String>,
}

impl Suite {
    fn add(
        &mut self,
        kernel: &str,
        shape: String,
        bytes: usize,
        bench: Bench,
        reader: IndexReader,
    ) -> Result<(), CudaError> {
        let micros = bench.time(reader)?;
        let bytes = bytes as f64;
        eprintln!("{kernel:24} {shape:32} {micros:10.2} us {:8.3} TB/s", bytes / f64::from(micros) / 1e6);
        self.cases.push(Case { kernel: kernel.into(), shape, bytes, micros });
        Ok(())
    }

    fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|w| w == name)
    }

    fn all(&mut self) -> Result<(), CudaError> {
        if self.wants("index_logits") {
            self.all_logits()?;
        }
        if self.wants("index_select") {
            let shapes = [1, 8, 64].map(|batch| [2048, 8192, 32768].map(|rows| (batch, rows)));
            for &shape in shapes.iter().flatten() {
                self.scores(IndexReader::Fast, IndexFormat::Fp8, shape, Some(512))?;
            }
        }
        if self.wants("topk") {
            let shapes = [1, 8, 64].map(|batch| [2048, 8192, 32768, 262_144].map(|rows| (batch, rows)));
            shapes.iter().flatten().try_for_each(|&(batch, rows)| self.topk(batch, rows, 512))?;
        }
        if self.wants("index_store") {
            for format in [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4] {
                self.index_store(format, 1)?;
                self.index_store(format, 64)?;
            }
        }
        if self.wants("experts") {
            [1, 8, 64].iter().try_for_each(|&rows| self.experts(MatrixFormat::Nvfp4, rows))?;
            self.experts(MatrixFormat::Mxfp4, 8)?;
        }
        if self.wants("linear") {
            for rows in [1, 8, 64, 256] {
                self.linear(MatrixFormat::Nvfp4, rows, 4096, 4096)?;
                self.linear(MatrixFormat::Fp8Block, rows, 4096, 4096)?;
                self.linear(MatrixFormat::Bf16, rows, 4096, 4096)?;
            }
        }
        if self.wants("attention") {
            [1, 8, 64].iter().try_for_each(|&batch| self.attention(KvFormat::Fp8, batch))?;
            self.attention(KvFormat::Bf16, 8)?;
        }
        if self.wants("small") {
            self.small(1)?;
            self.small(64)?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = Gpu::open(0)?;
    let name = gpu.device_name()?;
    let wanted = std::env::args().skip(1).collect();
    let mut suite = Suite { backend: Arc::new(gpu), cases: Vec::new(), wanted };
    let outcome = suite.all();
    let cases = suite.cases.iter().map(
        |c| serde_json::json!({ "kernel": c.kernel, "shape": c.shape, "bytes": c.bytes, "us": c.micros }),
    );
    let report = serde_json::json!({
        "gpu": name, "cold": true, "repeats": REPEATS, "cases": cases.collect::<Vec<_>>(),
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    outcome.map_err(Into::into)
}
