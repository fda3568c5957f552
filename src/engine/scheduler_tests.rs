use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, channel};

use super::super::api::{GenerateRequest, SamplingParams};
use super::super::bucket::DecodeBuckets;
use super::super::device::HostDevice;
use super::super::handle::EngineConfig;
use super::super::request::Reader;
use super::*;
use crate::checkpoint::synthetic;
use crate::cpu;
use crate::format::index_row::IndexFormat;
use crate::format::kv_row::KvFormat;
use crate::instrument::Instruments;
use crate::model::{ModelWeights, load};
use crate::ops::Dtype;
use crate::step::Numerics;

fn scheduler() -> Scheduler {
    let checkpoint = synthetic::checkpoint(&synthetic::tiny_config(), 7).unwrap();
    let numerics =
        Numerics { activation: Dtype::Bf16, trained: true, kv: KvFormat::Fp8, index: IndexFormat::Bf16 };
    let config = EngineConfig {
        max_model_len: 512,
        max_num_seqs: 3,
        decode_buckets: DecodeBuckets::default(),
        max_num_queued: 9,
        num_blocks: None,
        numerics,
        vocab: checkpoint.config.vocab_size,
        threads: None,
        instruments: Instruments::default(),
    };
    let (weights, registry) = ModelWeights::new(&checkpoint.config, config.max_positions());
    let layout = CacheLayout::new(&weights, numerics, config.cache_size());
    let steps = config.prepare(&weights, &layout).unwrap();
    let loaded: cpu::Weights = load(&registry, &checkpoint).unwrap().into_iter().collect();
    let device = HostDevice::new(&layout, steps, loaded, cpu::serial::run_step);
    Scheduler::new(Runner::new(Box::new(device), None), layout, &config)
}

fn enqueue(scheduler: &mut Scheduler, id: u64, prompt: u32, max_tokens: usize) -> Receiver<Event> {
    let (sender, events) = channel(max_tokens + 1);
    let prompt = (0..prompt).map(|i| (i * 7 + u32::try_from(id).unwrap()) % 96).collect();
    let sampling = SamplingParams { temperature: 0.8, seed: id, ..SamplingParams::default() };
    let request = GenerateRequest { prompt, max_tokens, stop_token_ids: Vec::new(), sampling };
    let reader = Reader::new(sender, Arc::new(1.into()));
    scheduler.enqueue(Waiting { id, request, reader });
    events
}

fn finish(scheduler: &mut Scheduler) {
    while !scheduler.idle() {
        scheduler.round().unwrap();
    }
}

fn read(mut events: Receiver<Event>) -> (Vec<u32>, Event) {
    let mut tokens = Vec::new();
    loop {
        match events.try_recv().unwrap() {
            Event::Token(token) => tokens.push(token.id),
            end => return (tokens, end),
        }
    }
}

/// The request's first page is not its own any more, as after a bug of the cache.
fn spoil(scheduler: &mut Scheduler, id: u64) {
    let page = &mut scheduler.active.get_mut(&id).unwrap().sequence.blocks[0];
    page.generation += 1;
}

const LENGTHS: [(u64, u32); 3] = [(1, 9), (2, 40), (3, 300)];

fn expected() -> Vec<Vec<u32>> {
    let alone = |(id, prompt)| {
        let mut scheduler = scheduler();
        let events = enqueue(&mut scheduler, id, prompt, 20);
        finish(&mut scheduler);
        read(events).0
    };
    LENGTHS.map(alone).to_vec()
}

#[test]
fn inputs_that_are_refused_end_their_request_alone() {
    let expected = expected();
    // In the first round the second request's block is yet to come; after twelve all of them decode.
    for rounds in [1, 12] {
        let mut scheduler = scheduler();
        let events = LENGTHS.map(|(id, prompt)| enqueue(&mut scheduler, id, prompt, 20));
        for _ in 0..rounds {
            scheduler.round().unwrap();
        }
        assert_eq!(scheduler.active[&2].blocks_left() > 0, rounds == 1);
        spoil(&mut scheduler, 2);
        finish(&mut scheduler);
        let [first, second, third] = events.map(read);
        let row = if rounds == 1 { 0 } else { 1 };
        let page = scheduler.caches.blocks.total() - scheduler.caches.blocks.free_count();
        assert_eq!(page, 1, "all but the page that is nobody's came back");
        let Event::Failed(EngineError::Internal(why)) = &second.1 else { panic!("{:?}", second.1) };
        let start = format!("the inputs of this request were refused: block_table[{row}][0]: page ");
        assert!(why.starts_with(&start) && why.ends_with(" is not the request's to read"), "{why}");
        assert_eq!(second.0, expected[1][..second.0.len()]);
        assert_eq!([&first.0, &third.0], [&expected[0], &expected[2]]);
        assert!([first.1, third.1].iter().all(|end| matches!(end, Event::Finished { .. })));
        let stats = scheduler.stats();
        assert_eq!((stats.finished, stats.failed), (2, 1));
        assert_eq!((stats.free_slots, stats.free_windows), (stats.total_slots, stats.total_windows));
    }
}

/// A page that was lost makes the pool smaller; a request that needs it is told so instead of waiting for ever.
#[test]
fn what_can_never_fit_is_refused() {
    let mut scheduler = scheduler();
    let lost = enqueue(&mut scheduler, 1, 9, 20);
    scheduler.round().unwrap();
    spoil(&mut scheduler, 1);
    finish(&mut scheduler);
    assert!(matches!(read(lost).1, Event::Failed(EngineError::Internal(_))));
    let pages = scheduler.caches.blocks.total();
    scheduler.caches.blocks.allocate(Owner(9), pages - 2).unwrap();
    let [large, small] = [(2, 300), (3, 9)].map(|(id, prompt)| enqueue(&mut scheduler, id, prompt, 20));
    finish(&mut scheduler);
    let refused = EngineError::OutOfPages { needed: 2, total: 1 };
    assert_eq!(read(large).1, Event::Failed(refused));
    assert!(matches!(read(small).1, Event::Finished { .. }));
}

/// Pages of a request that has ended come back only once the step that may still use them has completed.
#[test]
fn pages_come_back_after_the_step_that_is_under_way() {
    let mut scheduler = scheduler();
    let events = enqueue(&mut scheduler, 1, 9, 100);
    while scheduler.stats().generated_tokens < 5 {
        scheduler.round().unwrap();
    }
    assert!(!scheduler.runner.idle(), "a step is under way");
    drop(events);
    scheduler.drop_abandoned();
    scheduler.settle();
    let held = scheduler.stats();
    assert_eq!((held.running, held.aborted), (0, 1));
    assert!(held.free_slots < held.total_slots && held.free_blocks < held.total_blocks);
    scheduler.complete().unwrap();
    scheduler.settle();
    let stats = scheduler.stats();
    assert_eq!((stats.free_slots, stats.free_blocks), (stats.total_slots, stats.total_blocks));
    assert_eq!((stats.free_windows, stats.discarded_rows), (stats.total_windows, 1));
}
