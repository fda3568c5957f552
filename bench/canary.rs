//! A pass of the canary over its default budget: spans sent, hashed, and their hashes read back. No operation of a step, so it
//! is timed whole, as an instrument waits for it, behind a cleared cache.

use criterion::{Criterion, SamplingMode, Throughput};
use flashlane::cuda::{DeviceResident, Hasher};
use flashlane::instrument::{Span, Store, hash};
use flashlane::step::{Bytes, PoolId, Resident};

use crate::bench::Bench;
use crate::gpu::{Gpu, GpuTime};
use crate::support::Draw;

const BUDGET: usize = 256 << 20;
/// A page of 64 index rows in bf16.
const PAGE: usize = 64 * 128 * 2;

struct Watched {
    resident: DeviceResident,
    spans: Vec<Span>,
    hasher: Hasher,
}

impl Watched {
    /// The first page holds something, and its hash is the host's.
    fn new(gpu: &Gpu) -> Self {
        let mut pool = Bytes::zeroed(BUDGET);
        let mut draw = Draw::new(1);
        pool[..PAGE].fill_with(|| u8::try_from(draw.below(256)).expect("a byte"));
        let first = hash(&pool[..PAGE], 0);
        let host = Resident { pools: vec![pool], states: Vec::new() };
        let pages = (0..BUDGET).step_by(PAGE);
        let span = |at| Span { store: Store::Pool(PoolId(0)), range: at..at + PAGE, first: 0 };
        let resident = DeviceResident::upload(&gpu.backend, &host).expect("memory");
        let mut watched = Self { resident, spans: pages.map(span).collect(), hasher: Hasher::default() };
        let hashes =
            watched.hasher.hashes(&gpu.backend, &watched.resident, &watched.spans).expect("a launch");
        assert!(hashes[0] == first && hashes[1] == hashes[2], "canary: the device hashed otherwise");
        watched
    }
}

pub(crate) fn all(c: &mut Criterion<GpuTime>, gpu: &mut Gpu) {
    let bench = Bench::new("canary", format!("{} MiB", BUDGET >> 20), 1, |_, _| {}).moves(BUDGET, 0);
    let mut group = c.benchmark_group(bench.kernel);
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::BytesDecimal(bench.bytes as u64));
    let mut watched = None;
    group.bench_function(format!("{}/cold", bench.shape), |b| {
        let Watched { resident, spans, hasher } = watched.get_or_insert_with(|| Watched::new(gpu));
        let backend = gpu.backend.clone();
        let mut pass = || hasher.hashes(&backend, resident, spans).map(drop);
        b.iter_custom(|n| (0..n).map(|_| gpu.cold(&mut pass)).sum());
    });
    group.finish();
    if watched.is_some() {
        gpu.report.case(&bench, 1);
    }
}
