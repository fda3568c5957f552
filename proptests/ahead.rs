//! The engine one step ahead of its device: what it may touch while a step runs, what it decides from, and whose turn it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use flashlane::cpu;
use flashlane::engine::{
    Device, Engine, EngineConfig, Event, FinishReason, Generate, GenerateRequest, HostDevice, Prepared, RING,
    RequestHandle, SamplingParams, Token, Wanted,
};
use flashlane::format::index_row::IndexFormat;
use flashlane::model::{CacheLayout, ModelWeights, StepShape, load};
use flashlane::ops::Embed;
use flashlane::step::HostIo;

use crate::engine::{PROMPTS, SERVED, collect, config, idle, model, request};
use crate::world::{Executor, World, world};

/// A launched step, by what its inputs said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Launch {
    prefill: bool,
    /// The seed (which numbers the requests) and the position of what is sampled.
    samples: Vec<(u64, i32)>,
    /// Launches not yet waited for, this one included.
    under_way: usize,
}

/// Spoils what the host must not rely on, and notes what it does.
struct Spoiling {
    device: HostDevice<cpu::Weights, cpu::ExecError>,
    under_way: VecDeque<(usize, usize)>,
    /// Runs a step when it is launched, not when it is waited for.
    eager: bool,
    /// Held by a test while it submits, so that what is launched after does not depend on time.
    gate: Arc<Mutex<()>>,
    log: Arc<Mutex<Vec<Launch>>>,
}

impl Device for Spoiling {
    fn steps(&self) -> Arc<[Prepared]> {
        self.device.steps()
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        assert!(!self.under_way.iter().any(|&(_, used)| used == slot), "slot {slot} is the device's");
        self.device.io(step, slot)
    }

    fn launch(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String> {
        drop(self.gate.lock().unwrap());
        let (steps, io) = (self.steps(), self.device.io(step, slot));
        let model = &steps[step].step;
        let positions = io.host::<i32>(&model.io.sample_position);
        let sampled = io.host::<u64>(&model.io.seed).iter().copied().zip(positions.iter().copied());
        let samples = sampled.filter(|(_, position)| *position >= 0).collect();
        let prefill = model.shape.per_request > 1;
        let carried = io.host::<i32>(&model.io.token).contains(&Embed::CARRIED);
        assert!(prefill != carried, "decode takes its tokens from the device");
        io.outputs_mut().fill(0x7f);
        self.device.launch(step, slot, wanted)?;
        if self.eager {
            self.device.wait(step, slot)?;
        }
        self.under_way.push_back((step, slot));
        self.log.lock().unwrap().push(Launch { prefill, samples, under_way: self.under_way.len() });
        Ok(())
    }

    fn wait(&mut self, step: usize, slot: usize) -> Result<(), String> {
        assert_eq!(self.under_way.pop_front(), Some((step, slot)), "steps are waited for in order");
        self.device.wait(step, slot)?;
        self.device.io(step, slot).inputs_mut().fill(0xff);
        Ok(())
    }
}

struct Watched {
    engine: Engine,
    gate: Arc<Mutex<()>>,
    log: Arc<Mutex<Vec<Launch>>>,
}

impl Watched {
    /// Submits all before a second step is launched.
    fn submit(&self, requests: impl IntoIterator<Item = GenerateRequest>) -> Vec<RequestHandle> {
        let _held = self.gate.lock().unwrap();
        requests.into_iter().map(|r| self.engine.submit(r).unwrap()).collect()
    }
}

fn spoiling(config: EngineConfig, eager: bool) -> Watched {
    let checkpoint = model();
    let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
    let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
    let steps = config.prepare(&weights, &layout).unwrap();
    let loaded = load(&registry, &checkpoint).unwrap().into_iter().collect();
    let device = HostDevice::new(&layout, steps, loaded, cpu::serial::run_step);
    let (gate, log) = (Arc::default(), Arc::default());
    let under_way = VecDeque::new();
    let spoiling = Spoiling { device, under_way, eager, gate: Arc::clone(&gate), log: Arc::clone(&log) };
    Watched { engine: Engine::start(config, layout, Box::new(spoiling)).unwrap(), gate, log }
}

/// Everything that a request's reader sees.
fn all(mut handle: RequestHandle) -> (Vec<Token>, Event) {
    let mut tokens = Vec::new();
    while let Some(event) = handle.events.blocking_recv() {
        match event {
            Event::Token(token) => tokens.push(token),
            end => return (tokens, end),
        }
    }
    panic!("request {} ended without an event", handle.id);
}

/// Requests with log-probabilities, with stop tokens that come at any place, and with neither.
fn requests(stops: &[Vec<u32>]) -> Vec<GenerateRequest> {
    let with = |(seed, prompt): (u64, usize)| {
        let mut one = request(seed, prompt, 12);
        one.sampling.top_logprobs = (seed % 3 == 0).then_some(3);
        one.stop_token_ids = stops.get(usize::try_from(seed).unwrap()).cloned().unwrap_or_default();
        one
    };
    (0u64..).zip(PROMPTS).map(with).collect()
}

/// Tokens, log-probabilities and ends are those of the request alone, whenever a device runs its steps; at most one row is
/// computed in vain for a request that a stop token ends, and none for one whose end is known before.
#[test]
fn stop_tokens_and_logprobs_are_exact_one_step_ahead() {
    let alone = |requests: &[GenerateRequest]| -> Vec<(Vec<Token>, Event)> {
        let engine = Engine::on_cpu(&model(), config(SERVED, 1)).unwrap();
        requests.iter().map(|r| all(engine.submit(r.clone()).unwrap())).collect()
    };
    let free = alone(&requests(&[]));
    let stop = |(i, (tokens, _)): (usize, &(Vec<Token>, Event))| vec![tokens[i % tokens.len()].id];
    let stops: Vec<Vec<u32>> = free.iter().enumerate().map(stop).collect();
    let requests = requests(&stops);
    let expected = alone(&requests);
    for (seen, (free, _)) in expected.iter().zip(&free) {
        assert_eq!(seen.0[..], free[..seen.0.len()], "a stop token cuts, and changes nothing before");
        assert!(matches!(seen.1, Event::Finished { reason: FinishReason::Stop, .. }), "{:?}", seen.1);
    }
    for (eager, rows) in [(false, 3), (true, 3), (true, 12)] {
        let watched = spoiling(config(SERVED, rows), eager);
        let handles = watched.submit(requests.iter().rev().cloned());
        let mut got: Vec<_> = handles.into_iter().map(all).collect();
        got.reverse();
        assert_eq!(got, expected, "eager: {eager}, {rows} rows");
        idle(&watched.engine);
        let stats = watched.engine.stats();
        assert!((1..=12).contains(&stats.discarded_rows), "{stats:?}");
        let log = watched.log.lock().unwrap();
        assert!(log.iter().all(|l| l.under_way <= RING));
        let ahead = log.iter().filter(|l| l.under_way == RING).count();
        assert!(
            ahead * 10 > log.len() * 8,
            "{ahead} of {} launches came before the last was read",
            log.len()
        );
    }
}

#[test]
fn an_end_that_is_known_costs_no_row() {
    let watched = spoiling(config(SERVED, 4), true);
    for handle in watched.submit((0..8).map(|seed| request(seed, 5, 6))) {
        assert_eq!(collect(handle).0.len(), 6);
    }
    idle(&watched.engine);
    assert_eq!(watched.engine.stats().discarded_rows, 0);
    let log = watched.log.lock().unwrap();
    assert_eq!(log.iter().map(|l| l.samples.len()).sum::<usize>(), 8 * 6);
}

/// Aborts at any point: pages come back, others' tokens stay right, and no more than a row each is computed in vain.
#[test]
fn aborts_cost_at_most_a_row() {
    let expected: Vec<_> = {
        let engine = Engine::on_cpu(&model(), config(SERVED, 1)).unwrap();
        (0..4).map(|seed| collect(engine.submit(request(seed, 40, 30)).unwrap()).0).collect()
    };
    let Watched { engine, .. } = spoiling(config(SERVED, 3), true);
    for round in 0..24u64 {
        let kept = engine.submit(request(round % 4, 40, 30)).unwrap();
        let mut dropped = engine.submit(request(99, 300, 400)).unwrap();
        for _ in 0..round % 5 {
            let _event = dropped.events.blocking_recv();
        }
        drop(dropped);
        assert_eq!(collect(kept).0, expected[usize::try_from(round % 4).unwrap()], "round {round}");
    }
    idle(&engine);
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.aborted), (24, 24));
    assert!(stats.discarded_rows <= 24, "{stats:?}");
}

/// A step that runs again on the same inputs leaves the same bytes, carried tokens included: it writes no cell that it reads.
#[test]
fn a_step_that_runs_again_gives_the_same_bytes() {
    let decode = [(511, 1), (130, 1), (0, 0), (258, 1)];
    for (shape, requests) in
        [(StepShape::decode(4, 1024), &decode[..]), (StepShape::prefill(1024), &[(256, 200)])]
    {
        let World { step, plan, mut memory, mut resident, executors } =
            world(IndexFormat::Fp4, shape, requests, 5);
        let weights = executors.iter().find_map(|e| match e {
            Executor::Cpu(weights) => Some(weights),
            Executor::Reference(_) => None,
        });
        let before = resident.states.iter().map(|s| s.to_vec()).collect::<Vec<_>>();
        let mut run = || {
            cpu::serial::run_step(&step.graph, &plan, &mut memory, &mut resident, weights.unwrap()).unwrap();
            let kept = resident.pools.iter().chain(&resident.states).map(|b| b.to_vec());
            (memory.outputs().to_vec(), kept.collect::<Vec<_>>())
        };
        let first = run();
        assert!(first.1[first.1.len() - before.len()..] != before, "states are written");
        assert!(first == run(), "{shape}");
    }
}

fn long(max_num_seqs: usize) -> EngineConfig {
    EngineConfig { max_model_len: 3072, ..config(SERVED, max_num_seqs) }
}

/// While a request decodes, a decode step waits for one prefill block at most; and blocks are not held back either.
#[test]
fn a_decode_step_waits_for_one_prefill_block_at_most() {
    let watched = spoiling(long(6), false);
    let others = (1..6).map(|seed| request(seed, 2000, 4));
    for handle in watched.submit([request(0, 3, 60)].into_iter().chain(others)) {
        assert!(matches!(collect(handle).1, Event::Finished { .. }));
    }
    idle(&watched.engine);
    let log = watched.log.lock().unwrap();
    let of = |seed: u64| log.iter().enumerate().filter(move |(_, l)| l.samples.iter().any(|s| s.0 == seed));
    let decodes: Vec<usize> = of(0).map(|(at, _)| at).collect();
    assert_eq!(decodes.len(), 60);
    assert!(decodes[1..].windows(2).all(|pair| pair[1] - pair[0] <= 2), "{decodes:?}");
    let alternate = decodes[1..].windows(2).filter(|pair| pair[1] - pair[0] == 2).count();
    assert!(alternate >= 39, "{alternate} decode steps had a block before them");
    let stats = watched.engine.stats();
    assert_eq!((stats.blocks_between_decodes, stats.prefill_blocks), (1, 1 + 5 * 8));
}

/// Short prompts behind long ones take every other block; the long ones still go on.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let watched = spoiling(long(6), false);
    let longs = (0..2).map(|seed| request(seed, 2800, 2));
    for handle in watched.submit(longs.chain((2..5).map(|seed| request(seed, 20, 1)))) {
        assert!(matches!(collect(handle).1, Event::Finished { .. }));
    }
    let log = watched.log.lock().unwrap();
    let first = |seed: u64| log.iter().position(|l| l.samples.iter().any(|s| s.0 == seed)).unwrap();
    let last_short = (2..5).map(first).max().unwrap();
    // One block was launched before all requests were there.
    assert!(last_short <= 2 * 3 + 1, "{last_short}");
    let others = log[..last_short].iter().filter(|l| l.samples.is_empty()).count();
    assert!(others >= 2, "the long prompts went on meanwhile: {others}");
    assert_eq!(first(0).min(first(1)), first(0), "of the long ones, the older first");
}

/// What a request asks for beside its tokens decides what is read.
#[test]
fn sampling_without_logprobs_reads_no_logits() {
    let Watched { engine, .. } = spoiling(config(SERVED, 2), false);
    let plain = collect(engine.submit(request(4, 9, 5)).unwrap()).0;
    let sampling = SamplingParams { top_logprobs: Some(0), ..request(4, 9, 5).sampling };
    let asked = all(engine.submit(GenerateRequest { sampling, ..request(4, 9, 5) }).unwrap()).0;
    assert_eq!(asked.iter().map(|t| t.id).collect::<Vec<_>>(), plain);
    assert!(
        asked.iter().all(|t| t.logprobs.as_ref().is_some_and(|l| l.chosen.is_finite() && l.chosen <= 0.0))
    );
}
