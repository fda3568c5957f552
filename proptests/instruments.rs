//! The instruments in an engine: silent where nothing is wrong, sure of what they are there for, and without a trace in the
//! steps.

use std::sync::{Arc, Mutex};

use flashlane::cpu::any_order::Order;
use flashlane::cpu::{self};
use flashlane::engine::{
    Device, Engine, EngineConfig, Generate, HostDevice, Prepared, Simulation, StartError, Wanted,
};
use flashlane::format::index_row::IndexFormat;
use flashlane::instrument::{Fault, Instruments, Probe, Quantity, Report};
use flashlane::model::{CacheLayout, ModelWeights, load};
use flashlane::step::{HostIo, Mutant, Numerics, fingerprint};

use crate::engine::{SERVED, collect, config, model, request};

const ALL_ON: Instruments = Instruments { canary: Some(1 << 20), diff_every: Some(1), inject: None };

fn with(instruments: Instruments, rows: usize) -> EngineConfig {
    EngineConfig { instruments, ..config(SERVED, rows) }
}

fn injecting(spec: &str) -> Instruments {
    Instruments { inject: Some(spec.parse::<Fault>().unwrap()), ..ALL_ON }
}

/// Requests that cross every border: pages, prefill blocks, compressed rows, the top-k limit.
fn tokens(engine: &Engine) -> Vec<Vec<u32>> {
    let sizes = [(1, 9), (63, 9), (250, 12), (257, 40), (420, 9)];
    let submit =
        |(seed, (prompt, max)): (u64, (usize, usize))| engine.submit(request(seed, prompt, max)).unwrap();
    let handles: Vec<_> = (0u64..).zip(sizes).map(submit).collect();
    handles.into_iter().map(|handle| collect(handle).0).collect()
}

fn run(config: EngineConfig) -> (Vec<Vec<u32>>, Report) {
    let engine = Engine::on_cpu(&model(), config).unwrap();
    let tokens = tokens(&engine);
    (tokens, settled(&engine))
}

/// The report once the last step has been looked at: the last token goes out after that.
fn settled(engine: &Engine) -> Report {
    engine.instruments().unwrap()
}

#[test]
fn a_sound_engine_is_certified_and_gives_the_same_tokens() {
    for (index, rows) in [(IndexFormat::Bf16, 5), (IndexFormat::Fp8, 2), (IndexFormat::Fp4, 3)] {
        let numerics = Numerics { index, ..SERVED };
        let plain = EngineConfig { numerics, ..config(SERVED, rows) };
        let expected = tokens(&Engine::on_cpu(&model(), plain).unwrap());
        let (got, report) = run(EngineConfig { instruments: ALL_ON, ..plain });
        assert_eq!(got, expected);
        let canary = report.canary.unwrap();
        assert_eq!((canary.hits, canary.refusal()), (0, None), "{canary}");
        assert!(canary.sealed > 20 && canary.pages > canary.sealed && canary.rows > 100, "{canary}");
        let diff = report.differential.unwrap();
        assert_eq!((diff.differing, diff.sampled), (0, diff.steps), "{diff}");
        assert_eq!((diff.certified.len(), diff.blind.len()), (Quantity::ALL.len(), 0), "{diff}");
        assert!(diff.refusals().is_empty() && diff.selected_rows > 1000, "{diff}");
    }
}

/// Each fault is found by the instrument that is there for it, and by no other.
#[test]
fn a_fault_is_found_by_the_instrument_that_can_see_it() {
    for spec in ["page:step=9", "byte:seed=3", "byte:pool=index,seed=1", "page:layer=0,pool=window,rate=0.02"]
    {
        let report = run(with(injecting(spec), 4)).1;
        let (inject, canary) = (report.inject.unwrap(), report.canary.unwrap());
        assert!(inject.pages > 0, "{spec}: {inject}");
        assert_eq!(inject.found_by_canary + inject.released + inject.pending, inject.pages, "{inject}");
        assert!(canary.hits >= inject.found_by_canary && inject.found_by_canary > 0, "{canary}\n{inject}");
        // Both runs read what is there, right or wrong.
        let diff = report.differential.unwrap();
        assert_eq!(diff.differing, 0, "{spec}: {diff}");
    }
    for (spec, quantity) in [
        ("row:seed=1", Quantity::Window),
        ("row:pool=rows,layer=1", Quantity::Rows),
        ("row:pool=index,layer=1", Quantity::Index),
        ("index:rate=0.2", Quantity::Selected),
        ("index", Quantity::Selected),
        ("score", Quantity::Selected),
        ("score:layer=1,rate=0.5,seed=5", Quantity::Selected),
    ] {
        let report = run(with(injecting(spec), 4)).1;
        let (inject, diff) = (report.inject.unwrap(), report.differential.unwrap());
        assert!(inject.injected > 0 && inject.sampled_steps > 5, "{spec}: {inject}");
        assert_eq!(inject.found_by_differential, inject.sampled_steps, "{spec}: {inject}");
        let at = Quantity::ALL.iter().position(|q| *q == quantity).unwrap();
        assert!(diff.by_quantity[at] > 0, "{spec}: {diff} {:?}", diff.by_quantity);
        // The owner's own row, wrong or right, is what the canary takes for true.
        assert_eq!(report.canary.unwrap().hits, 0, "{spec}");
    }
}

/// The budget sets how long a change can go unseen, and the canary says so beforehand.
#[test]
fn the_canary_keeps_to_its_budget_and_to_its_word() {
    let of = |budget| {
        let instruments = Instruments { canary: Some(budget), ..Instruments::default() };
        run(with(instruments, 4)).1.canary.unwrap()
    };
    let (small, large) = (of(1 << 16), of(1 << 24));
    assert!(small.latency > 3 && small.latency <= small.stated_latency, "{small}");
    assert_eq!((large.latency, large.stated_latency), (1, 1), "{large}");
    // One page may lie across the end of the budget.
    assert!(small.bytes <= small.steps * ((1 << 16) + (1 << 16)), "{small}");
    assert_eq!(small.sealed, large.sealed);
}

#[test]
fn a_fault_strikes_where_it_is_told_to() {
    let of = |spec: &str| run(with(injecting(spec), 4)).1.inject.unwrap();
    assert_eq!(of("row:step=3").injected, 1);
    assert_eq!((of("index:layer=0").injected, of("index:layer=2").injected), (0, 0), "these select nothing");
    assert_eq!(of("score:step=100000").injected, 0);
    let [half, all] = ["index:rate=0.5", "index:rate=1"].map(|spec| of(spec).injected);
    assert!(half * 3 > all && half * 3 < 2 * all, "{half} of {all}");
    assert_eq!(of("index:rate=0.1,seed=4"), of("index:rate=0.1,seed=4"), "draws repeat");
}

/// Rates differ with the share of steps that are looked at.
#[test]
fn the_differential_runs_one_step_in_so_many() {
    let instruments = Instruments { diff_every: Some(7), ..Instruments::default() };
    let engine = Engine::on_cpu(&model(), with(instruments, 3)).unwrap();
    tokens(&engine);
    let diff = settled(&engine).differential.unwrap();
    assert_eq!(diff.sampled, diff.steps / 7);
    let sampled = engine.sampled();
    let positions = (0..400).filter(|&p| sampled.contains(3, p)).count();
    // The fourth request: 40 tokens.
    assert!((3..=9).contains(&positions), "{positions}");
}

#[test]
fn what_was_not_shown_is_not_certified() {
    let engine = Engine::on_cpu(&model(), with(ALL_ON, 1)).unwrap();
    collect(engine.submit(request(0, 5, 3)).unwrap());
    let report = settled(&engine);
    let diff = report.differential.unwrap();
    let open: Vec<Quantity> = diff.refusals().iter().map(|(quantity, _)| *quantity).collect();
    assert_eq!(open, [Quantity::Selected], "{diff}");
    assert!(diff.to_string().contains("not_certified=selected (every context"), "{diff}");
    let canary = report.canary.unwrap();
    assert!(canary.to_string().contains("certified=no (no full page"), "{canary}");
}

/// A mutant that corrupts in some order differs from its serial run, and no page of the cache shows it.
#[test]
fn a_race_is_seen_by_the_differential_alone() {
    let simulation = || Simulation {
        order: Some(Order::Worst),
        percent: 100,
        seed: 3,
        mutant: Some(Mutant::FreeByHostOrder),
        unproved: true,
        ..Simulation::default()
    };
    let engine = Engine::simulated(&model(), with(ALL_ON, 4), simulation()).unwrap();
    let together = tokens(&engine);
    let report = settled(&engine);
    assert!(report.differential.as_ref().unwrap().differing > 0, "{report:?}");
    assert_eq!(report.canary.unwrap().hits, 0);
    assert_ne!(together, tokens(&Engine::on_cpu(&model(), config(SERVED, 4)).unwrap()));
    // The same steps in append order have nothing to show.
    let serial = Simulation { order: Some(Order::Serial), ..simulation() };
    let engine = Engine::simulated(&model(), with(ALL_ON, 4), serial).unwrap();
    tokens(&engine);
    assert_eq!(settled(&engine).differential.unwrap().differing, 0);
}

type Ran = Arc<Mutex<Vec<(u64, usize)>>>;

/// Steps on the CPU, with what a test wants to know of them.
struct Observed {
    inner: Box<dyn Device>,
    /// Of each step that ran: fingerprint, and the bytes of its arena.
    ran: Ran,
    probe: bool,
}

impl Device for Observed {
    fn steps(&self) -> Arc<[Prepared]> {
        self.inner.steps()
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        self.inner.io(step, slot)
    }

    fn launch(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String> {
        let steps = self.inner.steps();
        let print = fingerprint(&steps[step].step.graph, &steps[step].plan);
        self.ran.lock().unwrap().push((print, steps[step].plan.arena_bytes));
        self.inner.launch(step, slot, wanted)
    }

    fn wait(&mut self, step: usize, slot: usize) -> Result<(), String> {
        self.inner.wait(step, slot)
    }

    fn probe(&mut self) -> Option<&mut dyn Probe> {
        if self.probe { self.inner.probe() } else { None }
    }
}

fn observed(config: EngineConfig, probe: bool) -> (Result<Engine, StartError>, Ran) {
    let checkpoint = model();
    let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
    let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
    let steps = config.prepare(&weights, &layout).unwrap();
    let loaded: cpu::Weights = load(&registry, &checkpoint).unwrap().into_iter().collect();
    let ran = Ran::default();
    let inner = Box::new(HostDevice::new(&layout, steps, loaded, cpu::serial::run_step));
    let device = Observed { inner, ran: Arc::clone(&ran), probe };
    (Engine::start(config, layout, Box::new(device)), ran)
}

/// G15: the same steps over the same memory, one after another, with any instrument on or off.
#[test]
fn no_instrument_changes_a_step() {
    let one = |instruments: Instruments| {
        let (engine, ran) = observed(with(instruments, 1), true);
        let engine = engine.unwrap();
        for (seed, (prompt, max)) in (0..).zip([(40, 30), (300, 20)]) {
            collect(engine.submit(request(seed, prompt, max)).unwrap());
        }
        drop(engine);
        Arc::into_inner(ran).unwrap().into_inner().unwrap()
    };
    let plain = one(Instruments::default());
    assert!(plain.len() > 40);
    for instruments in [
        Instruments { canary: Some(1 << 16), ..Instruments::default() },
        Instruments { diff_every: Some(1), ..Instruments::default() },
        injecting("byte"),
        injecting("row:rate=0.1"),
        ALL_ON,
    ] {
        let mut ran = one(instruments);
        let mut plain = plain.clone();
        if instruments.inject.is_some() {
            // Faults change tokens, and with them how many steps there are.
            [&mut ran, &mut plain].into_iter().for_each(|all| {
                all.sort_unstable();
                all.dedup();
            });
        }
        assert_eq!(ran, plain, "{instruments:?}");
    }
}

#[test]
fn instruments_do_not_start_where_they_cannot_look() {
    let refused = observed(with(ALL_ON, 1), false).0.unwrap_err().to_string();
    assert!(refused.contains("certify nothing") && refused.contains("cannot be read"), "{refused}");
    assert!(observed(config(SERVED, 1), false).0.is_ok(), "without instruments nothing is looked at");
}

/// The same code on the CUDA path: nothing differs where nothing is wrong, and a fault of each sort is found.
#[cfg(feature = "cuda")]
mod cuda {
    use flashlane::cuda::{Backend, RunMode};
    use flashlane::engine::GpuConfig;

    use super::*;

    /// Contexts over the top-k limit, with a full window page.
    fn report(
        backend: &Arc<dyn Backend>,
        (mode, every): (RunMode, u64),
        spec: Option<&str>,
        sizes: &[(usize, usize)],
    ) -> Report {
        let instruments = spec.map_or(ALL_ON, injecting);
        let instruments = Instruments { diff_every: Some(every), ..instruments };
        let gpu = GpuConfig { mode, ..GpuConfig::default() };
        let config = with(instruments, sizes.len());
        let engine = Engine::on_gpu(&model(), config, Arc::clone(backend), &gpu).unwrap();
        let submit = |(seed, &(prompt, max)): (u64, &(usize, usize))| {
            engine.submit(request(seed, prompt, max)).unwrap()
        };
        let handles: Vec<_> = (0u64..).zip(sizes).map(submit).collect();
        for (handle, &(_, max)) in handles.into_iter().zip(sizes) {
            let (tokens, end) = collect(handle);
            // A fault may end a request early, and nothing else may.
            assert!(
                tokens.len() == max || spec.is_some(),
                "{mode:?}: {} of {max} tokens, {end:?}",
                tokens.len()
            );
        }
        settled(&engine)
    }

    fn holds(backend: &Arc<dyn Backend>, mode: RunMode, every: u64, sizes: &[(usize, usize)]) {
        let sound = report(backend, (mode, every), None, sizes);
        let (canary, diff) = (sound.canary.unwrap(), sound.differential.unwrap());
        assert_eq!((canary.hits, canary.refusal()), (0, None), "{mode:?}: {canary}");
        assert_eq!((diff.differing, diff.refusals().len()), (0, 0), "{mode:?}: {diff}");
        for spec in ["byte:pool=window", "row:pool=window"] {
            let faulty = report(backend, (mode, every), Some(spec), sizes);
            let inject = faulty.inject.unwrap();
            assert!(inject.injected > 0, "{mode:?}: {inject}");
            if spec.starts_with("byte") {
                assert!(inject.found_by_canary > 0, "{mode:?}: {inject}");
            } else {
                assert_eq!(inject.found_by_differential, inject.sampled_steps, "{mode:?}: {inject}");
            }
        }
        if !mode.captured {
            let inject = report(backend, (mode, every), Some("index"), sizes).inject.unwrap();
            assert!(inject.sampled_steps > 0, "{mode:?}: {inject}");
            assert_eq!(inject.found_by_differential, inject.sampled_steps, "{mode:?}: {inject}");
        }
    }

    #[test]
    fn a_gpu_is_watched_in_every_mode() {
        let Some(gpu) = crate::support::cuda::gpu() else { return };
        let sizes = [(1, 9), (63, 9), (250, 12), (257, 40), (420, 9)];
        std::thread::scope(|scope| {
            for mode in crate::gpu_engine::modes() {
                let (gpu, sizes) = (&gpu, &sizes);
                scope.spawn(move || {
                    holds(gpu, mode, 1, sizes);
                    eprintln!("{mode:?}: watched");
                });
            }
        });
    }

    #[cfg(feature = "emulator")]
    #[test]
    fn the_emulator_is_watched() {
        let emulator: Arc<dyn Backend> = Arc::new(flashlane::cuda::Emulator::new(1));
        // Prefill, which is slow here, runs once; of the three decode steps the last completes a row.
        holds(&emulator, RunMode::default(), 2, &[(65, 4)]);
    }
}
