//! Executors, and promise 2 of every run: declared means declared.

use std::sync::atomic::{AtomicUsize, Ordering};

use flashlane::cpu::{self, simd::Simd};
use flashlane::ops::{BufferId, Dtype, Value};
use flashlane::reference;
use flashlane::step::{Class, Memory, Resident};
use half::bf16;

use super::case::{Case, Stored};

/// Something that runs the node of a case over its memory. A device copies the memory there and back.
pub(crate) trait Executor {
    fn name(&self) -> &'static str;

    /// False where the executor does not have the case at all (an activation in f32 on a GPU); it is then left out.
    fn takes(&self, case: &Case) -> bool {
        let _ = case;
        true
    }

    fn run(&self, case: &Case, memory: &mut Memory, resident: &mut Resident) -> Result<(), String>;
}

/// Every executor; the oracle comes first. A new one plugs in here.
pub(crate) fn executors() -> Vec<Box<dyn Executor>> {
    let mut all: Vec<Box<dyn Executor>> = vec![Box::new(Oracle)];
    all.extend(Simd::available().into_iter().map(|simd| Box::new(Cpu(simd)) as Box<dyn Executor>));
    #[cfg(feature = "cuda")]
    all.extend(super::cuda::executors());
    all
}

/// The CPU path with one instruction set.
struct Cpu(Simd);

impl Executor for Cpu {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn run(&self, case: &Case, memory: &mut Memory, resident: &mut Resident) -> Result<(), String> {
        let weights = case.cpu_weights(self.0)?;
        cpu::serial::run_step(&case.graph, &case.plan, memory, resident, &weights).map_err(|e| e.to_string())
    }
}

struct Oracle;

impl Executor for Oracle {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn run(&self, case: &Case, memory: &mut Memory, resident: &mut Resident) -> Result<(), String> {
        let mut weights = reference::Weights::new();
        for (id, weight) in &case.weights {
            match (&weight.stored, weight.values()) {
                (_, Some(values)) => weights.insert_f32(*id, &values),
                (Stored::Table(table), None) => weights.insert_table(*id, table.clone()),
                (other, None) => return Err(format!("{other:?} has no values")),
            }
        }
        reference::run_step(&case.graph, &case.plan, memory, resident, &weights).map_err(|e| e.to_string())
    }
}

/// Memory after a run.
pub(crate) struct Found {
    pub(crate) executor: &'static str,
    buffers: Vec<Vec<u8>>,
}

impl Found {
    pub(crate) fn bytes(&self, buffer: BufferId) -> &[u8] {
        &self.buffers[buffer.0 as usize]
    }

    pub(crate) fn ints(&self, value: &Value) -> Vec<i32> {
        elements(self.bytes(value.buffer))
    }

    pub(crate) fn floats(&self, buffer: BufferId) -> Vec<f32> {
        elements(self.bytes(buffer))
    }

    pub(crate) fn real(&self, value: &Value) -> Vec<f64> {
        let bytes = self.bytes(value.buffer);
        match value.dtype {
            Dtype::Bf16 => elements::<bf16>(bytes).iter().map(|v| v.to_f64()).collect(),
            _ => self.floats(value.buffer).iter().map(|&v| f64::from(v)).collect(),
        }
    }
}

fn elements<E: bytemuck::Pod>(bytes: &[u8]) -> Vec<E> {
    bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect()
}

/// A quiet NaN in f32 and bf16, -1 in i32; and a large number in all three.
const POISONS: [u8; 2] = [0xff, 0x7f];

/// With `FLASHLANE_TRACE` numbers the runs of this process: where one hangs or brings the device down, the last number and the
/// seed say which it was.
fn trace() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    if std::env::var_os("FLASHLANE_TRACE").is_some() {
        eprintln!("run {}", RUNS.fetch_add(1, Ordering::Relaxed));
    }
}

/// What each executor made of a case, the oracle first.
pub(crate) struct Runs {
    pub(crate) all: Vec<Found>,
}

impl Case {
    /// The weights as the CPU path holds them.
    pub(crate) fn cpu_weights(&self, simd: Simd) -> Result<cpu::Weights, String> {
        let mut weights = cpu::Weights::with_simd(simd);
        for (id, weight) in &self.weights {
            match (&weight.stored, weight.matrix()) {
                (_, Some(matrix)) => weights.insert(*id, matrix),
                (Stored::Table(table), None) => weights.insert_table(*id, table.clone()),
                (Stored::F32(values), None) => weights.insert_f32(*id, values.clone()),
                (other, None) => return Err(format!("{other:?} has no matrix")),
            }
        }
        Ok(weights)
    }

    /// Runs every executor under two poisons. What a node was not given to read must not show in what it writes, so the
    /// two results agree; what it was not given to write, guards included, must be as before.
    pub(crate) fn run(&self) -> Runs {
        trace();
        let all = executors();
        Runs { all: all.iter().filter(|e| e.takes(self)).map(|e| self.run_on(e.as_ref())).collect() }
    }

    /// Runs the CPU path with one instruction set, on the threads of `pool`.
    pub(crate) fn run_on_cpu(&self, simd: Simd, pool: &rayon::ThreadPool) -> Found {
        pool.install(|| self.run_poisoned(&Cpu(simd), POISONS[0]))
    }

    pub(crate) fn run_on(&self, executor: &dyn Executor) -> Found {
        let [first, second] = POISONS.map(|poison| self.run_poisoned(executor, poison));
        for id in self.graph.buffer_ids() {
            let written = self.written(id);
            let at =
                written.iter().enumerate().position(|(i, &w)| w && first.bytes(id)[i] != second.bytes(id)[i]);
            assert!(
                at.is_none(),
                "{}: byte {at:?} of {} depends on memory that is not an operand, or was not written",
                executor.name(),
                self.graph.buffer(id).name,
            );
        }
        first
    }

    fn run_poisoned(&self, executor: &dyn Executor, poison: u8) -> Found {
        let (mut memory, mut resident) = self.memory(poison);
        executor.run(self, &mut memory, &mut resident).unwrap_or_else(|e| panic!("{}: {e}", executor.name()));
        self.check_untouched(executor.name(), poison, &memory, &resident);
        let buffers = self
            .graph
            .buffer_ids()
            .map(|id| self.bytes(id, &memory, &resident).map(<[u8]>::to_vec).unwrap_or_default());
        Found { executor: executor.name(), buffers: buffers.collect() }
    }

    fn check_untouched(&self, executor: &str, poison: u8, memory: &Memory, resident: &Resident) {
        let mut owned = vec![false; memory.arena.len()];
        for id in self.graph.buffer_ids() {
            let Some(after) = self.bytes(id, memory, resident) else { continue };
            let (before, written) = (self.before(id, poison), self.written(id));
            let at = (0..after.len()).find(|&i| !written[i] && after[i] != before[i]);
            let name = &self.graph.buffer(id).name;
            assert!(at.is_none(), "{executor}: wrote byte {at:?} of {name}, which is not its to write");
            if let (Class::Transient, Some(start)) =
                (self.graph.buffer(id).class, self.plan.offsets[id.0 as usize])
            {
                owned[start..start + after.len()].fill(true);
            }
        }
        let strayed = owned.iter().zip(memory.arena.iter()).position(|(o, b)| !o && *b != poison);
        assert!(strayed.is_none(), "{executor}: wrote byte {strayed:?} of the arena, between operands");
    }
}
