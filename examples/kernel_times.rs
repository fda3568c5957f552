//! Times of the kernels on this machine's GPU, as JSON: `cargo run --release -p flashlane --features cuda --example kernel_times`.
//! Names after `--` (`index_logits topk …`, as in [`Suite::all`]) choose some of them.
//!
//! Each case is a step of several nodes over distinct data, captured and replayed; the second-level cache is cleared before
//! each replay, and the median of the replays, divided by the nodes, is the figure: launch gaps inside the graph count. Beside
//! it the bytes that must move. Values are random and not judged: the property tests do that.

use std::sync::Arc;

use flashlane::cuda::{
    Backend, CudaError, DeviceBuffer, DeviceResident, DeviceStep, DeviceWeight, DeviceWeights, Executor, Gpu,
    IndexReader, MatrixFormat, Options,
};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::ops::{
    Attention, BufferId, Compressed, Dtype, Epilogue, ExpertsDown, ExpertsUp, HyperPost, HyperPre,
    IndexLogits, IndexQuery, IndexSelect, IndexStore, Linear, Op, Paged, Query, RmsNorm, RopeStore, Router,
    Routing, StateLayout, Tokens, TopK, Value,
};
use flashlane::step::{
    Buffer, Bytes, Class, Graph, LaneId, LaneInfo, Memory, Node, Plan, PoolId, Resident, StateId, WeightId,
};

const REPEATS: usize = 9;
const HIDDEN: usize = 4096;
const MAX_POSITIONS: usize = 4096;

/// A step under construction, with its memory.
struct Bench {
    backend: Arc<dyn Backend>,
    graph: Graph,
    content: Vec<Vec<u8>>,
    resident: Resident,
    weights: DeviceWeights,
    random: Vec<u8>,
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

impl Bench {
    fn new(backend: &Arc<dyn Backend>) -> Self {
        let lane = LaneInfo { name: "main".into(), parent: None };
        Self {
            backend: Arc::clone(backend),
            graph: Graph { lanes: vec![lane], ..Graph::default() },
            content: Vec::new(),
            resident: Resident::default(),
            weights: DeviceWeights::default(),
            random: noise(1 << 24),
        }
    }

    fn buffer(&mut self, class: Class, dtype: Dtype, bytes: usize, content: Vec<u8>) -> BufferId {
        let id = BufferId(self.graph.buffers.len() as u32);
        self.graph.buffers.push(Buffer { name: format!("{}", id.0), class, dtype, shape: vec![], bytes });
        self.content.push(content);
        id
    }

    fn value(&mut self, dtype: Dtype, len: usize, content: Vec<u8>) -> Value {
        let buffer = self.buffer(Class::Transient, dtype, len * dtype.size(), content);
        Value { buffer, dtype, len }
    }

    fn out(&mut self, dtype: Dtype, len: usize) -> Value {
        self.value(dtype, len, Vec::new())
    }

    /// Numbers in `[-1, 1)`.
    fn real(&mut self, dtype: Dtype, len: usize) -> Value {
        let random = |i: usize| f32::from(self.random[i % self.random.len()] as i8) / 128.0;
        let floats = (0..len).map(random);
        let bytes = match dtype {
            Dtype::Bf16 => floats.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            _ => floats.zip(0..).flat_map(|(v, i)| (v + (i % 9973) as f32 * 1e-6).to_le_bytes()).collect(),
        };
        self.value(dtype, len, bytes)
    }

    fn ints(&mut self, data: &[i32]) -> Value {
        self.value(Dtype::I32, data.len(), bytemuck::cast_slice(data).to_vec())
    }

    fn longs(&mut self, data: &[i64]) -> Value {
        self.value(Dtype::I64, data.len(), bytemuck::cast_slice(data).to_vec())
    }

    fn tokens(&mut self, rows: usize, position: usize) -> Tokens {
        let position = self.ints(&vec![position as i32; rows]);
        Tokens { requests: rows, per_request: 1, position }
    }

    fn pool(&mut self, bytes: Vec<u8>) -> BufferId {
        let id = PoolId(self.resident.pools.len() as u32);
        let mut owned = Bytes::zeroed(bytes.len());
        owned.copy_from_slice(&bytes);
        self.resident.pools.push(owned);
        self.buffer(Class::Pool(id), Dtype::U8, bytes.len(), Vec::new())
    }

    fn state(&mut self, floats: usize) -> BufferId {
        let id = StateId(self.resident.states.len() as u32);
        self.resident.states.push(Bytes::zeroed(4 * floats));
        self.buffer(Class::State(id), Dtype::F32, 4 * floats, Vec::new())
    }

    /// Device memory filled with `pattern` over and over.
    fn filled(&self, bytes: usize, pattern: &[u8]) -> Result<DeviceBuffer, CudaError> {
        let buffer = DeviceBuffer::new(&self.backend, bytes)?;
        let mut at = 0;
        while at < bytes {
            let part = pattern.len().min(bytes - at);
            buffer.upload(at, &pattern[..part])?;
            at += part;
        }
        Ok(buffer)
    }

    fn weight(&mut self, weight: DeviceWeight) -> Value {
        let id = WeightId(self.graph.buffers.len() as u32);
        self.weights.insert(id, weight);
        let buffer = self.buffer(Class::Weight(id), Dtype::U8, 0, Vec::new());
        Value { buffer, dtype: Dtype::U8, len: 0 }
    }

    fn floats(&mut self, len: usize) -> Result<Value, CudaError> {
        let data: Vec<f32> =
            (0..len).map(|i| f32::from(self.random[i % self.random.len()] as i8) / 128.0).collect();
        let weight = DeviceWeight::plain(&self.backend, MatrixFormat::F32, bytemuck::cast_slice(&data))?;
        Ok(self.weight(weight))
    }

    fn matrix(
        &mut self,
        format: MatrixFormat,
        stack: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Value, CudaError> {
        let (codes, scales) = format.bytes(rows, cols);
        let one = |f: f32| f.to_le_bytes().repeat(1 << 18);
        let scale = match format {
            MatrixFormat::Fp8Block => one(0.01),
            MatrixFormat::Nvfp4 => vec![0x38; 1 << 20],
            _ => vec![127; 1 << 20],
        };
        // e4m3 without its NaN codes, bf16 of moderate size, any e2m1.
        let pattern: Vec<u8> = match format {
            MatrixFormat::Fp8Block => self.random.iter().map(|b| b & 0xbf).collect(),
            MatrixFormat::Bf16 => self.random.chunks(2).flat_map(|p| [p[0], p[1] & 0x80 | 0x3c]).collect(),
            _ => self.random.clone(),
        };
        let weight = DeviceWeight {
            format,
            codes: self.filled(stack * codes, &pattern)?,
            scales: if scales > 0 { Some(self.filled(stack * scales, &scale)?) } else { None },
            global: Some(self.filled(4 * stack, &one(1.0))?),
        };
        Ok(self.weight(weight))
    }

    fn node(&mut self, op: Op) {
        self.graph.nodes.push(Node { op, lane: LaneId(0), scope: "bench".into(), waits: true });
    }

    /// The median time of a node, in microseconds.
    fn time(self, reader: IndexReader) -> Result<f32, CudaError> {
        let plan = Plan::unshared(&self.graph);
        let mut memory = Memory::new(&self.graph, &plan);
        for (offset, content) in plan.offsets.iter().zip(&self.content) {
            if let Some(start) = offset {
                memory.arena[*start..*start + content.len()].copy_from_slice(content);
            }
        }
        let step = DeviceStep::upload(&self.backend, &self.graph, &memory)?;
        let resident = DeviceResident::upload(&self.backend, &self.resident)?;
        let options = Options { index_reader: reader };
        let nodes = self.graph.nodes.len() as f32;
        let executor = Executor { backend: self.backend, weights: self.weights, options };
        let mut all = executor.time(&self.graph, &plan, (&step, &resident), true, REPEATS)?;
        all.sort_by(f32::total_cmp);
        Ok(all[all.len() / 2] / nodes)
    }
}

/// A pool of index rows whose scales are one.
fn index_pool(format: IndexFormat, pages: usize, random: &[u8]) -> Vec<u8> {
    let mut page: Vec<u8> = match format {
        IndexFormat::Bf16 => {
            random.chunks(2).flat_map(|p| [p[0], p[1] & 0x80 | 0x3c]).take(64 * 256).collect()
        }
        _ => random.iter().map(|b| b & 0xbf).take(64 * format.code_bytes()).collect(),
    };
    match format {
        IndexFormat::Fp8 => page.extend(1f32.to_le_bytes().repeat(64)),
        IndexFormat::Fp4 => page.extend([127; 256]),
        _ => {}
    }
    page.repeat(pages)
}

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

    /// Scores of `rows` rows for each of `batch` tokens: the logits, or the `select` best.
    fn scores(
        &mut self,
        reader: IndexReader,
        format: IndexFormat,
        (batch, rows): (usize, usize),
        select: Option<usize>,
    ) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let heads = 64;
        let copies = (4_000_000 / (batch * rows)).clamp(1, 8);
        for _ in 0..copies {
            let tokens = b.tokens(batch, 4 * rows - 1);
            let pages = batch * rows / 64 + 1;
            let pool = index_pool(format, pages, &b.random);
            let pool = b.pool(pool);
            // Each request's pages are spread over the pool.
            let table: Vec<i32> =
                (0..batch * rows / 64).map(|i| (i * 7919 % (pages - 1) + 1) as i32).collect();
            let table = b.ints(&table);
            let keys = Paged { pool, table, width: rows / 64, page_rows: 64, pages };
            let n = batch * heads * format.code_bytes();
            let query = index_pool(format, (batch * heads).div_ceil(64), &b.random)[..n].to_vec();
            let codes = b.value(Dtype::U8, n, query);
            let ones = match format {
                IndexFormat::Fp8 => 1f32.to_le_bytes().repeat(batch * heads),
                _ => vec![127; 4 * batch * heads],
            };
            let scales = (format.scale_bytes() > 0).then(|| b.value(Dtype::U8, ones.len(), ones));
            let weights = b.real(Dtype::F32, batch * heads);
            let scale = 0.011;
            if let Some(k) = select {
                let selected = b.out(Dtype::I32, batch * k);
                let op =
                    IndexSelect { tokens, codes, scales, weights, keys, selected, k, heads, format, scale };
                b.node(Op::IndexSelect(op));
            } else {
                let logits = b.out(Dtype::F32, batch * rows);
                let op = IndexLogits { tokens, codes, scales, weights, keys, logits, heads, format, scale };
                b.node(Op::IndexLogits(op));
            }
        }
        let written = select.map_or(4 * rows, |k| 4 * k);
        let bytes = batch * (rows * format.row_bytes() + written + heads * (format.row_bytes() + 4));
        let name = match (select, reader) {
            (Some(_), _) => "index_select",
            (None, IndexReader::Fast) => "index_logits_fast",
            (None, IndexReader::Simple) => "index_logits_simple",
        };
        let chosen = select.map_or(String::new(), |k| format!(", k {k}"));
        self.add(name, format!("{format:?} {batch} x {rows}{chosen}"), bytes, b, reader)
    }

    fn topk(&mut self, batch: usize, rows: usize, k: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        for _ in 0..(8_000_000 / (batch * rows)).clamp(1, 8) {
            let tokens = b.tokens(batch, 4 * rows - 1);
            let logits = b.real(Dtype::F32, batch * rows);
            let selected = b.out(Dtype::I32, batch * k);
            b.node(Op::TopK(TopK { tokens, logits, width: rows, selected, k }));
        }
        self.add("topk", format!("{batch} x {rows}, k {k}"), batch * (4 * rows + 4 * k), b, IndexReader::Fast)
    }

    fn experts(&mut self, format: MatrixFormat, rows: usize) -> Result<(), CudaError> {
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

    fn linear(
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

    fn attention(&mut self, format: KvFormat, batch: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let (heads, k, compressed_pages) = (64, 512, 32);
        let rope = b.floats(MAX_POSITIONS * 64)?;
        let sink = b.floats(heads)?;
        for _ in 0..4 {
            let tokens = b.tokens(batch, 4095);
            let mut page = |pages: usize| {
                let bytes = format.page_bytes(64);
                let row: Vec<u8> = b.random.iter().map(|v| v & 0xbf).take(64 * 576).collect();
                let mut one = if format == KvFormat::Fp8 { row } else { vec![0x3c; bytes] };
                one.resize(bytes, 120);
                let pool = one.repeat(pages);
                b.pool(pool)
            };
            let (window_pages, row_pages) = (2 * batch + 1, compressed_pages * batch + 1);
            let (window, rows) = (page(window_pages), page(row_pages));
            let table: Vec<i32> = (0..batch * 64)
                .map(|i| if i % 64 < 62 { 0 } else { (i / 64 * 2 + i % 2 + 1) as i32 })
                .collect();
            let table = b.ints(&table);
            let window = Paged { pool: window, table, width: 64, page_rows: 64, pages: window_pages };
            let table: Vec<i32> = (0..batch * compressed_pages).map(|i| i as i32 + 1).collect();
            let table = b.ints(&table);
            let rows = Paged { pool: rows, table, width: compressed_pages, page_rows: 64, pages: row_pages };
            let visible = 1024;
            let picks: Vec<i32> = (0..batch * k).map(|i| (i % k * visible / k) as i32).collect();
            let selected = b.ints(&picks);
            let q = b.real(Dtype::Bf16, batch * heads * 512);
            let out = b.out(Dtype::Bf16, batch * heads * 512);
            let compressed = Compressed::Selected { rows, selected, k };
            b.node(Op::Attention(Attention {
                tokens,
                q,
                window,
                compressed,
                sink,
                rope,
                out,
                heads,
                format,
                max_positions: MAX_POSITIONS,
                scale: 0.044,
            }));
        }
        let bytes = batch * (640 * format.row_bytes() + heads * 512 * 4 + 4 * k);
        self.add("attention", format!("{format:?} {batch} x (128 + 512) rows"), bytes, b, IndexReader::Fast)
    }

    fn index_store(&mut self, format: IndexFormat, rows: usize) -> Result<(), CudaError> {
        let mut b = Bench::new(&self.backend);
        let (ape, norm, rope) = (b.floats(4 * 256)?, b.floats(128)?, b.floats(MAX_POSITIONS * 64)?);
        let layout = StateLayout { ratio: 4, width: 128 };
        for _ in 0..8 {
            let tokens = b.tokens(rows, 1023);
            let kvg = b.real(Dtype::F32, rows * 512);
            let state_slot = b.ints(&(0..rows as i32).collect::<Vec<_>>());
            let row_slot = b.longs(&(0..rows as i64).collect::<Vec<_>>());
            let state = b.state(rows * layout.len());
            let pages = rows.div_ceil(64);
            let pool = b.pool(vec![0; pages * format.page_bytes(64)]);
            b.node(Op::IndexStore(IndexStore {
                tokens,
                kvg,
                ape,
                norm,
                rope,
                state_slot,
                row_slot,
                state,
                state_slots: rows,
                layout,
                pool,
                pages,
                format,
                max_positions: MAX_POSITIONS,
                eps: 1e-6,
            }));
        }
        let bytes = rows * (2048 + 7 * 1024 + 2048 + format.row_bytes());
        self.add("index_store", format!("{format:?} {rows} rows"), bytes, b, IndexReader::Fast)
    }

    /// The small operations around the big ones, at `rows` tokens.
    fn small(&mut self, rows: usize) -> Result<(), CudaError> {
        let shape = || format!("{rows} rows");
        let mut b = Bench::new(&self.backend);
        let weight = b.floats(HIDDEN)?;
        for _ in 0..8 {
            let (x, out) = (b.real(Dtype::Bf16, rows * HIDDEN), b.out(Dtype::Bf16, rows * HIDDEN));
            b.node(Op::RmsNorm(RmsNorm { x, weight, out, rows, width: HIDDEN, eps: 1e-6 }));
        }
        self.add("rmsnorm", shape(), 4 * rows * HIDDEN, b, IndexReader::Fast)?;

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
            shape(),
            4 * 24 * n * hidden + rows * (2 * n + 2) * hidden,
            b,
            IndexReader::Fast,
        )?;

        let mut b = Bench::new(&self.backend);
        for _ in 0..8 {
            let tokens = b.tokens(rows, 5);
            let (streams, y) = (b.real(Dtype::Bf16, rows * n * hidden), b.real(Dtype::Bf16, rows * hidden));
            let (post, comb) = (b.real(Dtype::F32, rows * n), b.real(Dtype::F32, rows * n * n));
            let out = b.out(Dtype::Bf16, rows * n * hidden);
            b.node(Op::HyperPost(HyperPost { tokens, streams, y, post, comb, out, n, hidden }));
        }
        self.add("hyper_post", shape(), rows * (4 * n + 2) * hidden, b, IndexReader::Fast)?;

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
        self.add("query", shape(), rows * 64 * 512 * 4, b, IndexReader::Fast)?;

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
        self.add("rope_store", shape(), rows * (1024 + 584), b, IndexReader::Fast)?;

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
        self.add("index_query", shape(), rows * 64 * (256 + 132), b, IndexReader::Fast)?;

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
        self.add("router", shape(), rows * (1024 + 48), b, IndexReader::Fast)
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

    fn all_logits(&mut self) -> Result<(), CudaError> {
        let shapes =
            [(1, 2048), (1, 32768), (1, 262_144), (8, 32768), (64, 2048), (64, 32768), (64, 262_144)];
        for format in [IndexFormat::Fp8, IndexFormat::Bf16, IndexFormat::Fp4] {
            shapes.iter().try_for_each(|&shape| self.scores(IndexReader::Fast, format, shape, None))?;
            self.scores(IndexReader::Simple, format, (1, 32768), None)?;
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
