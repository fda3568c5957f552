//! The engine end to end on a synthetic model: the same tokens alone and in company, requests that come and go, and pools
//! that end as they began.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flashlane::checkpoint::{Checkpoint, synthetic};
use flashlane::cpu;
use flashlane::engine::{
    DecodeBuckets, Device, Engine, EngineConfig, EngineError, Event, FinishReason, Generate, GenerateRequest,
    HostDevice, Prepared, RequestHandle, SamplingParams, StartError, Wanted,
};
use flashlane::format::index_row::IndexFormat;
use flashlane::format::kv_row::KvFormat;
use flashlane::instrument::Instruments;
use flashlane::model::{CacheLayout, ModelWeights, load};
use flashlane::ops::Dtype;
use flashlane::step::{HostIo, Numerics, Random};

pub(crate) const SERVED: Numerics =
    Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index: IndexFormat::Bf16 };

pub(crate) fn model() -> Checkpoint {
    synthetic::checkpoint(&synthetic::tiny_config(), 7).unwrap()
}

pub(crate) fn config(numerics: Numerics, max_num_seqs: usize) -> EngineConfig {
    let vocab = synthetic::tiny_config().vocab_size;
    EngineConfig {
        max_model_len: 768,
        max_num_seqs,
        decode_buckets: DecodeBuckets::default(),
        max_num_queued: 64,
        num_blocks: None,
        numerics,
        vocab,
        threads: None,
        instruments: Instruments::default(),
    }
}

fn engine(numerics: Numerics, max_num_seqs: usize) -> Engine {
    Engine::on_cpu(&model(), config(numerics, max_num_seqs)).unwrap()
}

pub(crate) fn request(seed: u64, prompt: usize, max_tokens: usize) -> GenerateRequest {
    let mut random = Random::new(seed);
    let vocab = synthetic::tiny_config().vocab_size as u64;
    let prompt = (0..prompt).map(|_| u32::try_from(random.bits() % vocab).unwrap()).collect();
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 0.9 };
    let sampling = SamplingParams { temperature, seed, ..SamplingParams::default() };
    GenerateRequest { prompt, max_tokens, stop_token_ids: Vec::new(), sampling }
}

/// Prompt lengths around every border: rows of 4 and 128, the window, prefill blocks.
pub(crate) const PROMPTS: [usize; 12] = [1, 3, 4, 5, 63, 127, 128, 129, 255, 256, 257, 600];

pub(crate) fn collect(mut handle: RequestHandle) -> (Vec<u32>, Event) {
    let mut tokens = Vec::new();
    while let Some(event) = handle.events.blocking_recv() {
        match event {
            Event::Token(token) => tokens.push(token.id),
            end => return (tokens, end),
        }
    }
    panic!("request {} ended without an event", handle.id);
}

fn alone(numerics: Numerics) -> Vec<Vec<u32>> {
    alone_on(numerics, None)
}

fn alone_on(numerics: Numerics, threads: Option<usize>) -> Vec<Vec<u32>> {
    let engine = Engine::on_cpu(&model(), EngineConfig { threads, ..config(numerics, 1) }).unwrap();
    let one = |(seed, prompt): (u64, usize)| collect(engine.submit(request(seed, prompt, 9)).unwrap()).0;
    (0u64..).zip(PROMPTS).map(one).collect()
}

pub(crate) fn idle(engine: &Engine) {
    // The last event goes out before the counters are published and before the step under way has completed.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let s = engine.stats();
        let free = (s.free_blocks, s.free_windows, s.free_slots);
        if (s.running, s.waiting) == (0, 0) && free == (s.total_blocks, s.total_windows, s.total_slots) {
            return;
        }
        assert!(Instant::now() < deadline, "not everything came back: {s:?}");
        std::thread::yield_now();
    }
}

/// Promise 1: whatever the batch, the bucket and the row.
#[test]
fn tokens_are_the_same_alone_and_in_company() {
    for index in [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4] {
        let numerics = Numerics { index, ..SERVED };
        let expected = alone(numerics);
        let few = DecodeBuckets::new(&[2, 7]).unwrap();
        for (rows, decode_buckets) in
            [(3, DecodeBuckets::default()), (12, DecodeBuckets::default()), (12, few)]
        {
            let engine = Engine::on_cpu(&model(), EngineConfig { decode_buckets, ..config(numerics, rows) });
            let engine = engine.unwrap();
            let submit = |(seed, prompt): (u64, usize)| engine.submit(request(seed, prompt, 9)).unwrap();
            let order: Vec<(u64, usize)> = (0u64..).zip(PROMPTS).collect();
            let handles: Vec<_> = order.iter().rev().copied().map(submit).collect();
            let mut got: Vec<_> = handles.into_iter().map(|h| collect(h).0).collect();
            got.reverse();
            assert_eq!(got, expected, "{index:?}, {rows} rows, {decode_buckets:?}");
            idle(&engine);
        }
    }
}

#[test]
fn one_thread_and_two_give_the_same_tokens() {
    let one = alone_on(SERVED, Some(1));
    assert_eq!(one, alone_on(SERVED, Some(2)));
    assert_eq!(one, alone_on(SERVED, Some(5)));
}

#[test]
fn a_request_ends_once_with_its_reason_and_usage() {
    let engine = engine(SERVED, 2);
    let (tokens, end) = collect(engine.submit(request(2, 5, 4)).unwrap());
    assert_eq!(tokens.len(), 4);
    let Event::Finished { reason, usage } = end else { panic!("{end:?}") };
    assert_eq!((reason, usage.prompt_tokens, usage.completion_tokens), (FinishReason::Length, 5, 4));

    let stop = GenerateRequest { stop_token_ids: vec![tokens[1]], ..request(2, 5, 4) };
    let (stopped, end) = collect(engine.submit(stop).unwrap());
    assert_eq!(stopped, tokens[..2]);
    assert!(matches!(end, Event::Finished { reason: FinishReason::Stop, .. }), "{end:?}");
    idle(&engine);
}

/// P12: aborts at any point give everything back, and leave the tokens of others alone.
#[test]
fn aborted_requests_leave_nothing_behind() {
    let expected = alone(SERVED);
    let engine = Arc::new(engine(SERVED, 4));
    let mut random = Random::new(3);
    for round in 0..40u64 {
        let (seed, prompt) = (round % 12, PROMPTS[usize::try_from(round % 12).unwrap()]);
        let kept = engine.submit(request(seed, prompt, 9)).unwrap();
        let mut dropped = engine.submit(request(99, 300, 400)).unwrap();
        for _ in 0..random.bits() % 4 {
            let _event = dropped.events.blocking_recv();
        }
        drop(dropped);
        assert_eq!(collect(kept).0, expected[usize::try_from(seed).unwrap()], "round {round}");
    }
    idle(&engine);
    let s = engine.stats();
    assert_eq!((s.accepted, s.finished, s.aborted), (80, 40, 40));
}

#[test]
fn what_cannot_run_is_refused_in_words() {
    let engine = engine(SERVED, 1);
    let refused = |request: GenerateRequest| engine.submit(request).unwrap_err().to_string();
    assert_eq!(refused(request(0, 0, 4)), "prompt: must hold at least one token");
    assert_eq!(refused(request(0, 4, 0)), "max_tokens: must be at least 1");
    assert_eq!(
        refused(request(0, 760, 9)),
        "this model's maximum context length is 768 tokens; the prompt has 760 and 9 were asked for"
    );
    let wild = GenerateRequest { prompt: vec![96], ..request(0, 1, 1) };
    assert_eq!(refused(wild), "prompt: token id 96 is not below the vocabulary size 96");
    let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
    assert!(refused(GenerateRequest { sampling: hot, ..request(0, 1, 1) }).starts_with("temperature: "));
    engine.drain();
    assert_eq!(engine.submit(request(0, 1, 1)).unwrap_err(), EngineError::Draining);
}

#[test]
fn a_full_queue_refuses_and_loses_nothing() {
    let config = EngineConfig { max_num_queued: 2, ..config(SERVED, 1) };
    let engine = Engine::on_cpu(&model(), config).unwrap();
    let results: Vec<_> = (0..5).map(|seed| engine.submit(request(seed, 300, 200))).collect();
    let refused =
        results.iter().filter(|r| matches!(r, Err(EngineError::QueueFull { limit: 2, .. }))).count();
    assert_eq!(refused, 2);
    for handle in results.into_iter().flatten() {
        assert_eq!(collect(handle).0.len(), 200);
    }
    idle(&engine);
}

/// A sequence may fill the context to its last position.
#[test]
fn the_context_can_be_filled_exactly() {
    let engine = engine(SERVED, 1);
    let (tokens, end) = collect(engine.submit(request(4, 700, 68)).unwrap());
    assert_eq!(tokens.len(), 68);
    assert!(matches!(end, Event::Finished { reason: FinishReason::Length, .. }));
}

/// Sums of lengths do not wrap, and a size that nothing can number is refused in words before anything is made of it.
#[test]
fn sizes_at_the_end_of_their_range_are_refused_in_words() {
    let endless = EngineConfig { max_num_queued: usize::MAX, ..config(SERVED, 1) };
    let engine = Engine::on_cpu(&model(), endless).unwrap();
    let refused = engine.submit(request(0, 4, usize::MAX)).unwrap_err();
    assert_eq!(refused, EngineError::ContextLength { prompt: 4, max_tokens: usize::MAX, limit: 768 });
    assert_eq!(collect(engine.submit(request(0, 4, 2)).unwrap()).0.len(), 2);

    let small = config(SERVED, 1);
    for large in [
        EngineConfig { max_model_len: usize::MAX, ..small },
        EngineConfig { max_num_seqs: usize::MAX, ..small },
        EngineConfig { num_blocks: Some(usize::MAX), ..small },
        EngineConfig { num_blocks: Some(1 << 31), ..small },
    ] {
        assert!(matches!(large.check(), Err(StartError::TooLarge { .. })), "{large:?}");
    }
}

/// Pages for one request at a time, though rows for four: the others wait their turn, a large one is not passed over, and
/// one that could never run is refused at once.
#[test]
fn requests_wait_for_pages_in_order_of_arrival() {
    let expected = alone(SERVED);
    let engine = Engine::on_cpu(&model(), EngineConfig { num_blocks: Some(3), ..config(SERVED, 4) }).unwrap();
    let refused =
        Engine::on_cpu(&model(), EngineConfig { num_blocks: Some(1), ..config(SERVED, 4) }).unwrap();
    assert_eq!(
        refused.submit(request(0, 257, 9)).unwrap_err(),
        EngineError::OutOfPages { needed: 2, total: 1 }
    );
    let submit = |(seed, prompt): (u64, usize)| engine.submit(request(seed, prompt, 9)).unwrap();
    let handles: Vec<_> = (0u64..).zip(PROMPTS).chain([(11, 600), (0, 1)]).map(submit).collect();
    let got: Vec<_> = handles.into_iter().map(|handle| collect(handle).0).collect();
    assert_eq!(got[..12], expected);
    assert_eq!(got[12..], [expected[11].clone(), expected[0].clone()]);
    idle(&engine);
}

/// With no queue at all, whoever has had the end of a request can submit the next: its place is free by then, also while
/// a decode step of others goes on.
#[test]
fn a_place_is_free_when_its_request_has_ended() {
    let config = EngineConfig { max_num_queued: 0, ..config(SERVED, 2) };
    let engine = Engine::on_cpu(&model(), config).unwrap();
    let long = engine.submit(request(0, 1, 300)).unwrap();
    for seed in 0..50 {
        collect(engine.submit(request(seed, 1, 1)).unwrap());
    }
    collect(long);
}

/// Runs `left` steps, then fails or panics.
struct Failing {
    device: HostDevice<cpu::Weights, cpu::ExecError>,
    left: usize,
    panics: bool,
}

impl Device for Failing {
    fn steps(&self) -> Arc<[Prepared]> {
        self.device.steps()
    }

    fn io(&mut self, step: usize, slot: usize) -> &mut HostIo {
        self.device.io(step, slot)
    }

    fn wait(&mut self, step: usize, slot: usize) -> Result<(), String> {
        self.device.wait(step, slot)
    }

    fn launch(&mut self, step: usize, slot: usize, wanted: &Wanted) -> Result<(), String> {
        if self.left == 0 {
            assert!(!self.panics, "the device fell over");
            return Err("the device fell off the bus".to_owned());
        }
        self.left -= 1;
        self.device.launch(step, slot, wanted)
    }
}

fn failing(config: EngineConfig, left: usize, panics: bool) -> Engine {
    let checkpoint = model();
    let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
    let layout = CacheLayout::new(&weights, config.numerics, config.cache_size());
    let steps = config.prepare(&weights, &layout).unwrap();
    let loaded = load(&registry, &checkpoint).unwrap().into_iter().collect();
    let device = HostDevice::new(&layout, steps, loaded, cpu::serial::run_step);
    Engine::start(config, layout, Box::new(Failing { device, left, panics })).unwrap()
}

/// A device that fails, in prefill or decode, ends every request with its sentence: those in the step, those beside it and
/// those that wait.
#[test]
fn a_device_that_fails_ends_every_request_with_its_sentence() {
    for (panics, why) in [(false, "the device fell off the bus"), (true, "the device fell over")] {
        for left in [0, 1, 2, 3, 7] {
            let engine = failing(config(SERVED, 2), left, panics);
            // The first step takes long enough for all of four to be submitted, unless it fails.
            let accepted = if left == 0 { 1 } else { 4 };
            let submit = |seed| engine.submit(request(seed, 300, 200)).unwrap();
            let handles: Vec<_> = (0..accepted).map(submit).collect();
            let dead = EngineError::Dead(why.to_owned());
            for handle in handles {
                assert_eq!(collect(handle).1, Event::Failed(dead.clone()), "after {left} steps");
            }
            while engine.stats().failed < accepted {
                std::thread::yield_now();
            }
            assert_eq!(engine.stats().failed, accepted);
            assert_eq!(engine.submit(request(9, 1, 1)).unwrap_err(), dead);
        }
    }
}
