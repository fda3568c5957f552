//! The smallest cases that launch every kernel: what compute-sanitizer runs over (`tools/gpu-check`, docs/cuda.md).
//!
//! They run on a GPU if there is one, else on the emulator. What kernels compute is judged elsewhere; here declared means
//! declared, as in every run of a case, and no kernel may be left out: not one that is built and has no case here, nor one
//! that [`Kernel::ALL`] does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use flashlane::checkpoint::synthetic::tiny_config;
use flashlane::cuda::{
    Backend, DeviceBuffer, DeviceResident, DeviceStep, DeviceWeights, Fp4Kind, Hasher, Kernel, Recorder,
    RunMode, dequantize_bf16, dequantize_e4m3, quantize_bf16,
};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::instrument::{Span, Store};
use flashlane::model::ModelWeights;
use flashlane::ops::{HEAD_DIM, INDEX_DIM};
use flashlane::step::{Bytes, NodeId, PoolId, Resident};

use crate::support::cuda::{Cuda, device};
use crate::support::{Case, Draw, Dtype};
use crate::{attention, compress, embed, experts, hyper, index_logits, index_query, index_store, linear};
use crate::{query, rmsnorm, rope_store, router, sample, topk};

/// Kernels with a fault in them on purpose, the same sources compiled a second time.
const TWINS: [&str; 2] = ["slow_", "unwaited_"];

/// What nvcc built, as `tools/kernel-table` lists it and continuous integration holds it to.
const BUILT: &str = include_str!("../docs/kernels.md");

fn built() -> BTreeSet<String> {
    let name = |row: &str| Some(row.strip_prefix("| ")?.split(" | ").nth(1)?.to_owned());
    let kernels = BUILT.lines().filter(|row| row.contains(".cu |")).filter_map(name);
    kernels.filter(|k| !TWINS.iter().any(|twin| k.starts_with(twin))).collect()
}

/// One row in decode, of more heads than one, over window rows and what else a layer has; more rows, and as many as blocks of 64
/// heads are for.
fn attention_cases() -> Vec<Case> {
    let one = |ratio, format, positions: &[i32]| {
        let mut setup =
            attention::Setup::drawn(&mut Draw::new(1), format, 2, positions.len(), positions, ratio);
        setup.dtype = Dtype::Bf16;
        setup.build().case
    };
    let many: Vec<i32> = (100..164).collect();
    vec![
        one(None, KvFormat::Fp8, &[130]),
        one(Some(4), KvFormat::Bf16, &[130]),
        one(Some(128), KvFormat::Fp8, &[300]),
        one(Some(4), KvFormat::Fp8, &many),
        one(Some(128), KvFormat::Fp8, &many[..17]),
    ]
}

fn linear_cases() -> Vec<Case> {
    let one = |rows, groups, limit, f32_out| {
        let shape =
            linear::Shape { rows, depth: 160, per_group: 36, groups, limit, dtype: Dtype::Bf16, f32_out };
        let (x, weight) = linear::inputs(&shape, 1);
        linear::build(&shape, &x, &weight).case
    };
    let mut all = vec![one(3, 2, None, true), one(9, 1, Some(10.0), false)];
    // The last has more tiles than blocks that stream them on a device of one multiprocessor.
    for (rows, per_group) in [(3, 34), (9, 34), (40, 34), (70, 34), (3, 100)] {
        let shape = linear::Shape {
            rows,
            depth: 256,
            per_group,
            groups: 1,
            limit: None,
            dtype: Dtype::Bf16,
            f32_out: false,
        };
        let (x, weight) = linear::inputs(&shape, 1);
        for stored in linear::formats(&weight, shape.depth) {
            let mut built = linear::build(&shape, &x, &weight);
            built.case.weights[0].1.stored = stored;
            all.push(built.case);
        }
        all.push(linear::build(&shape, &x, &weight).case);
    }
    all
}

fn expert_cases() -> Vec<Case> {
    let one = |stored: Option<usize>| {
        let shape =
            experts::Shape { rows: 5, experts: 3, k: 2, hidden: 256, width: 1024, dtype: Dtype::Bf16 };
        let data = experts::data(shape, vec![2, 0, 2, 1, -1, 2, 2, 3, 0, 2], 1);
        let (mut up, mut down) = (experts::up(shape, &data, 10.0).0, experts::down(shape, &data).0);
        if let Some(format) = stored {
            up.weights[0].1.stored = experts::formats(&data.up, shape.hidden)[format].clone();
            down.weights[0].1.stored = experts::formats(&data.down, shape.width)[format].clone();
        }
        [up, down]
    };
    [None, Some(0), Some(1), Some(2)].into_iter().flat_map(one).collect()
}

fn hyper_cases() -> Vec<Case> {
    let (n, hidden, rows, dtype) = (4, 32, 2, Dtype::Bf16);
    let mut draw = Draw::new(1);
    let streams = draw.exact(rows * n * hidden, 1.0);
    let pre = hyper::Mixing::drawn(&mut draw, n, hidden, (2 + n) * n, 3);
    let head = hyper::Mixing::drawn(&mut draw, n, hidden, n, 1);
    let (y, p, c) =
        (draw.exact(rows * hidden, 1.0), draw.normals(rows * n, 1.0), draw.normals(rows * n * n, 1.0));
    // More tokens than clusters of matrices have room for beside the others.
    let (many, crowd) = (50, Draw::new(2).exact(50 * n * hidden, 1.0));
    vec![
        hyper::pre(&pre, &[3, -1], &streams, dtype).case,
        hyper::pre(&pre, &vec![3; many], &crowd, dtype).case,
        hyper::post(&[3, -1], n, [&streams, &y, &p, &c], dtype).0,
        hyper::head(&head, &[1, -1], &streams, dtype).0,
    ]
}

/// Rows of the caches: written token by token, and after a block of compressed ones.
fn store_cases() -> Vec<Case> {
    let mut draw = Draw::new(1);
    let store = |format| rope_store::Setup::drawn(1, 3, Dtype::Bf16).build(format, true).0;
    let [c4, c128] = [(4, 6..9), (128, 126..129)].map(|(ratio, range)| {
        let setup = compress::Setup::drawn(&mut draw, compress::layout(ratio), &[range]);
        setup.build(KvFormat::Fp8, true).0
    });
    let keys = compress::Setup::drawn(&mut draw, index_store::LAYOUT, &[6..9, 254..257]);
    let index = |format| index_store::build(&keys, format).0;
    let formats = [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4].map(index);
    [store(KvFormat::Fp8), store(KvFormat::Bf16), c4, c128].into_iter().chain(formats).collect()
}

fn row_cases() -> Vec<Case> {
    let mut draw = Draw::new(1);
    let dtype = Dtype::Bf16;
    let rows = embed::Rows {
        per_request: 1,
        positions: vec![4, 5, -1],
        token: vec![-1, 5, 0],
        slots: vec![0, 1, 0],
        carried: vec![3, 4, 6, 0],
    };
    let table = draw.exact(embed::VOCAB * 40, 1.0);
    let hashed = router::Choice::Table { rows: &[0, 2, 1, 3], token: &[1, 0] };
    let logits = draw.normals(10, 1.0);
    let bias = router::Choice::Bias(&[0.0; 5]);
    let plain = sample::Row::plain(&draw.normals(300, 1.0));
    let filtered = sample::Row { top_k: 40, top_p: 0.9, min_p: 0.01, ..plain.clone() };
    vec![
        rows.build(&table, 4, dtype).case,
        rmsnorm::case(2, &draw.exact(2 * 300, 1.0), &[1.0; 300], dtype).0,
        query::build(&[3, -1], &draw.exact(2 * 2 * HEAD_DIM, 1.0), dtype).0,
        index_query::build(&[3, -1], &draw.exact(2 * 3 * INDEX_DIM, 1.0), dtype, IndexFormat::Fp4).case,
        index_query::build(&[3, -1], &draw.exact(2 * 3 * INDEX_DIM, 1.0), dtype, IndexFormat::Fp8).case,
        router::build(&[0, 3], &logits, &bias, 2).case,
        router::build(&[0, 3], &logits, &hashed, 2).case,
        sample::build(&[sample::Row { temperature: 0.0, ..plain.clone() }, plain, filtered]).case,
        sample::build(&[sample::Row {
            top_k: 40,
            top_p: 0.9,
            ..sample::Row::plain(&draw.normals(9000, 1.0))
        }])
        .case,
    ]
}

/// Every way to share a row: one block, a cluster, and what is too long for it; without and with more candidates than a list
/// holds.
fn choice_cases() -> Vec<Case> {
    let one = |width: usize, levels: usize| {
        let mut draw = Draw::new(1);
        let score = |draw: &mut Draw| if levels == 0 { draw.normal(1.0) } else { draw.below(levels) as f32 };
        let logits: Vec<f32> = (0..width).map(|_| score(&mut draw)).collect();
        topk::build(&[topk::position(width)], &logits, 64).0
    };
    vec![one(700, 0), one(4100, 2), one(8300, 0), one(8400, 2), one(262_147, 0)]
}

/// Scores of index keys in every format, and the choice from them.
fn index_cases() -> Vec<Case> {
    let one = |format, positions: &[i32], select| {
        index_logits::Setup::drawn(&mut Draw::new(1), format, 3, positions, 3).build(select).case
    };
    let formats = [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4];
    let both = |format| [one(format, &[4 * 70 + 3, 11], None), one(format, &[4 * 100 + 3], Some(40))];
    formats.into_iter().flat_map(both).collect()
}

/// Blocks of FP4, which are no operation of a step.
fn convert(backend: &Arc<dyn Backend>) {
    let buffer = |bytes: usize| DeviceBuffer::zeroed(backend, bytes).unwrap();
    let elements = 96;
    for (kind, scales) in [(Fp4Kind::Nvfp4 { scale2: 1.0 }, 16), (Fp4Kind::Mxfp4, 32)] {
        let (wide, narrow) = (buffer(2 * elements), buffer(elements));
        let (codes, scales) = (buffer(elements / 2), buffer(elements / scales));
        quantize_bf16(backend, kind, &wide, &codes, &scales).unwrap();
        dequantize_bf16(backend, kind, &codes, &scales, &wide).unwrap();
        dequantize_e4m3(backend, kind, &codes, &scales, 1.0, &narrow).unwrap();
    }
    backend.synchronize().unwrap();
}

/// What no step holds: the canary's hash, random weights, and the delay before a node; on a GPU in a captured graph too.
fn beside_steps(backend: &Arc<dyn Backend>) {
    let host = Resident { pools: vec![Bytes::zeroed(64)], states: Vec::new() };
    let resident = DeviceResident::upload(backend, &host).unwrap();
    let span = Span { store: Store::Pool(PoolId(0)), range: 4..64, first: 1 };
    assert_eq!(Hasher::default().hashes(backend, &resident, &[span]).unwrap().len(), 1);
    let (weights, registry) = ModelWeights::new(&tiny_config(), 256);
    DeviceWeights::random(backend, &registry, &weights.stacks(), 1).unwrap();

    let case = rmsnorm::case(2, &[1.0; 2 * 300], &[1.0; 300], Dtype::Bf16).0;
    let (memory, resident) = case.memory(0);
    let step = DeviceStep::upload(backend, &case.graph, &memory).unwrap();
    let device = DeviceResident::upload(backend, &resident).unwrap();
    let executor = Cuda::new("device", Arc::clone(backend)).executor(&case).unwrap();
    let captured = RunMode { captured: true, ..RunMode::default() };
    let modes = [RunMode::default(), captured];
    for mode in modes.into_iter().take(if backend.name() == "gpu" { 2 } else { 1 }) {
        let how = (mode, &BTreeMap::from([(NodeId(0), 1)]));
        let ready = executor.ready_unproved(&case.graph, &case.plan, (&step, &device), how).unwrap();
        executor.start(&ready).unwrap();
        backend.synchronize().unwrap();
    }
}

/// Cases of every operation of a step.
pub(crate) fn cases() -> [(&'static str, Vec<Case>); 8] {
    [
        ("attention", attention_cases()),
        ("linear", linear_cases()),
        ("experts", expert_cases()),
        ("hyper", hyper_cases()),
        ("stores", store_cases()),
        ("rows", row_cases()),
        ("choices", choice_cases()),
        ("index", index_cases()),
    ]
}

#[test]
fn every_kernel_once() {
    let Some(device) = device() else { return };
    let recorder = Arc::new(Recorder::new(device));
    let backend: Arc<dyn Backend> = Arc::<Recorder>::clone(&recorder);
    let start = Instant::now();
    let plain = || Cuda::new("device", Arc::clone(&backend));
    // Launches choose by the device's size: the kernels that fill a large one run here too.
    let sized =
        |n| Cuda::new("device of another size", Arc::new(recorder.as_if(n, recorder.shared_memory())));
    let small = || Cuda::new("small device", Arc::new(recorder.as_if(6, 99 << 10)));
    for (name, cases) in cases() {
        let others = match name {
            "linear" => vec![sized(1), sized(4), sized(8), sized(132), small()],
            "index" => vec![plain().simple_reader(), sized(2), sized(4), sized(8)],
            _ => vec![],
        };
        for (i, case) in cases.iter().enumerate() {
            eprintln!("{:.1} s: {name} {i}", start.elapsed().as_secs_f32());
            case.run_on(&plain());
            others.iter().for_each(|other| drop(case.run_on(other)));
        }
    }
    eprintln!("{:.1} s: conversions, and what no step holds", start.elapsed().as_secs_f32());
    convert(&backend);
    beside_steps(&backend);
    assert_eq!(recorder.launched(), built(), "launched here, and built (docs/kernels.md)");
}

#[test]
fn every_kernel_that_is_built_has_a_name_here() {
    let known: BTreeSet<String> = Kernel::ALL.iter().map(|k| k.symbol().to_owned()).collect();
    assert_eq!(known, built(), "Kernel::ALL, and docs/kernels.md");
}
