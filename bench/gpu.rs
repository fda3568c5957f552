//! Operations on a GPU, by CUDA events.
//!
//! What is timed is a captured graph of launches of one operation, each over operands of its own, and the figure is the graph's
//! time over its launches. There are three:
//! - `cold`: full edges between the launches, and the second-level cache cleared before each replay by reading other memory;
//! - `warm`: the same over the operands of one launch, with nothing cleared;
//! - `chain`: `cold` with programmatic edges and a foreign kernel before each launch, less the foreign kernels alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use flashlane::checkpoint::WeightFormat;
use flashlane::cuda::{
    Backend, CudaError, DeviceResident, DeviceStep, Executor, Fence, IndexReader, Options, Ready, RunMode,
};
use flashlane::ops::Op;
use flashlane::step::{Graph, Node};

use crate::bench::{At, Bench};
use crate::report::Report;
use crate::support::cuda::executor;
use crate::{OPS, canary, check, hyper, linear, nvfp4, rmsnorm};

const HIDDEN: usize = 4096;
/// Rows of 8 KiB that are read to clear the cache: 256 MiB.
const CLEARING: usize = 32 << 10;
/// Launches of a graph are as many as move these bytes, within limits, where a benchmark does not say how many.
const MOVED: usize = 64 << 20;
const MOST: usize = 8;
/// Launches over the same operands.
const WARM: usize = 8;

pub(crate) fn all(backend: &Arc<dyn Backend>) {
    let report = Report::new();
    let time = GpuTime(Arc::clone(backend));
    let mut c = Criterion::default()
        .with_measurement(time)
        .output_directory(report.directory())
        .sample_size(10)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(5))
        .measurement_time(Duration::from_millis(50))
        .configure_from_args();
    let mut gpu = Gpu { backend: Arc::clone(backend), clear: None, report };
    gpu.ceilings(&mut c);
    let mut failed = 0;
    for bench in OPS.iter().flat_map(|benches| benches(At::Gpu)) {
        // One that fails takes none of the others with it.
        failed += usize::from(catch_unwind(AssertUnwindSafe(|| gpu.time(&mut c, &bench))).is_err());
    }
    nvfp4::all(&mut c, &mut gpu);
    canary::all(&mut c, &mut gpu);
    c.final_summary();
    gpu.report.write();
    assert!(failed == 0, "{failed} benchmarks failed");
}

/// Time between two CUDA events on the backend's stream, in nanoseconds.
pub(crate) struct GpuTime(Arc<dyn Backend>);

impl Measurement for GpuTime {
    type Intermediate = Box<dyn Fence>;
    type Value = f64;

    fn start(&self) -> Self::Intermediate {
        self.0.fence().expect("an event")
    }

    fn end(&self, start: Self::Intermediate) -> f64 {
        let end = self.0.fence().expect("an event");
        end.wait().expect("what was timed");
        1000.0 * f64::from(end.since(start.as_ref()).expect("a clock"))
    }

    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    /// That of criterion's clock, which counts nanoseconds too.
    fn formatter(&self) -> &dyn ValueFormatter {
        static CLOCK: WallTime = WallTime;
        CLOCK.formatter()
    }
}

pub(crate) struct Gpu {
    pub(crate) backend: Arc<dyn Backend>,
    /// Made when it is first needed.
    clear: Option<Captured>,
    pub(crate) report: Report,
}

impl Gpu {
    /// Nanoseconds of `work` behind a cleared cache.
    pub(crate) fn cold(&mut self, work: impl FnOnce() -> Result<(), CudaError>) -> f64 {
        self.clear().start();
        self.warm(work)
    }

    fn warm(&self, work: impl FnOnce() -> Result<(), CudaError>) -> f64 {
        let time = GpuTime(Arc::clone(&self.backend));
        let start = time.start();
        work().expect("a launch");
        time.end(start)
    }

    /// One row through a matrix of bf16 that is larger than any cache.
    fn clear(&mut self) -> &Captured {
        let shape = (1, HIDDEN, CLEARING);
        let bench = Bench::new("clear", String::new(), 1, move |case, _| {
            linear::node(case, WeightFormat::Bf16, shape);
        });
        self.clear.get_or_insert_with(|| Captured::new(&self.backend, &bench, 1))
    }

    /// The rate at which the clearing kernel reads.
    fn ceilings(&mut self, c: &mut Criterion<GpuTime>) {
        let mut group = c.benchmark_group("ceiling");
        group.sampling_mode(SamplingMode::Flat);
        let bytes = 2 * HIDDEN * CLEARING;
        group.throughput(Throughput::BytesDecimal(bytes as u64));
        let mut ran = false;
        group.bench_function("read", |b| {
            ran = true;
            self.clear();
            b.iter_custom(|n| {
                (0..n).map(|_| self.warm(|| self.clear.iter().try_for_each(|c| c.run(&c.cold)))).sum()
            });
        });
        group.finish();
        if ran {
            self.report.ceiling("ceiling/read", bytes);
        }
    }

    fn time(&mut self, c: &mut Criterion<GpuTime>, bench: &Bench) {
        let mut group = c.benchmark_group(bench.kernel);
        group.sampling_mode(SamplingMode::Flat);
        group.throughput(Throughput::BytesDecimal(bench.bytes as u64));
        let mut captured = None;
        let launches = bench.launches.unwrap_or((MOVED / bench.bytes.max(1)).clamp(1, MOST));
        let make = |gpu: &Self| Captured::checked(&gpu.backend, bench, launches);
        let mut one =
            |group: &mut BenchmarkGroup<'_, GpuTime>, figure: &str, time: fn(&mut Self, &Captured) -> f64| {
                group.bench_function(format!("{}/{figure}", bench.shape), |b| {
                    let captured = captured.get_or_insert_with(|| make(self));
                    b.iter_custom(|n| (0..n).map(|_| time(self, captured)).sum());
                });
            };
        one(&mut group, "cold", |gpu, c| gpu.cold(|| c.run(&c.cold)) / c.launches as f64);
        one(&mut group, "warm", |gpu, c| gpu.warm(|| c.run(&c.warm)) / WARM as f64);
        one(&mut group, "chain", |gpu, c| {
            let [both, foreign] = [&c.chain, &c.foreign].map(|ready| gpu.cold(|| c.run(ready)));
            (both - foreign) / c.launches as f64
        });
        group.finish();
        if captured.is_some() {
            self.report.case(bench, launches);
        }
    }
}

/// Whether it writes pools or states.
fn stores(op: &Op) -> bool {
    matches!(op, Op::RopeStore(_) | Op::Compress(_) | Op::IndexStore(_) | Op::Sample(_))
}

/// Launches of one operation over their memory, as graphs.
struct Captured {
    launches: usize,
    cold: Ready,
    warm: Ready,
    chain: Ready,
    foreign: Ready,
    // After the graphs that use their memory.
    executor: Executor,
    _memory: (DeviceStep, DeviceResident),
}

impl Captured {
    fn new(backend: &Arc<dyn Backend>, bench: &Bench, launches: usize) -> Self {
        Self::build(backend, bench, launches, false).expect("kernels for the shape")
    }

    /// As [`new`](Self::new), and its output is right.
    fn checked(backend: &Arc<dyn Backend>, bench: &Bench, launches: usize) -> Self {
        Self::build(backend, bench, launches, true).expect("kernels for the shape")
    }

    fn build(
        backend: &Arc<dyn Backend>,
        bench: &Bench,
        launches: usize,
        check: bool,
    ) -> Result<Self, CudaError> {
        let mut case = bench.case(launches);
        let nodes = case.graph.nodes.clone();
        match bench.kernel {
            "rmsnorm" => hyper::post_node(&mut case, 1, HIDDEN),
            _ => rmsnorm::node(&mut case, 1, HIDDEN),
        }
        let foreign = case.graph.nodes.pop().expect("a foreign node");
        let (mut memory, mut resident) = case.memory(0);
        let step = DeviceStep::upload(backend, &case.graph, &memory)?;
        let on_device = DeviceResident::upload(backend, &resident)?;
        let index_reader = if bench.simple { IndexReader::Simple } else { IndexReader::Fast };
        let executor = executor(backend, &case, Options { index_reader })?;
        let ready = |nodes: Vec<Node>, programmatic| {
            let graph = Graph { nodes, ..case.graph.clone() };
            let mode = RunMode { captured: true, forked: false, programmatic };
            executor.ready_unproved(&graph, &case.plan, (&step, &on_device), (mode, &BTreeMap::new()))
        };
        let pairs = nodes.iter().flat_map(|node| [foreign.clone(), node.clone()]).collect();
        let cold = ready(nodes.clone(), false)?;
        let warm = ready(vec![nodes[0].clone(); WARM], false)?;
        let chain = ready(pairs, true)?;
        let foreign = ready(vec![foreign; launches], true)?;
        if check {
            executor.start(&cold)?;
            step.read_arena(&mut memory)?;
            if stores(&nodes[0].op) {
                on_device.download(&mut resident)?;
            }
            check::by_the_cpu(bench, |id| case.bytes(id, &memory, &resident));
        }
        Ok(Self { executor, launches, cold, warm, chain, foreign, _memory: (step, on_device) })
    }

    fn run(&self, ready: &Ready) -> Result<(), CudaError> {
        self.executor.start(ready)
    }

    fn start(&self) {
        self.run(&self.cold).expect("a launch");
    }
}
