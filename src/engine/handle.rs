//! Starts the engine thread and talks to it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::api::{EngineError, Generate, GenerateRequest, RequestHandle, Stats};
use super::bucket::{DecodeBuckets, Prepared, RING, Unprovable, decode_shapes, prepare, prove_steps};
use super::device::Device;
use super::request::{Reader, Waiting};
use super::runner::Runner;
use super::scheduler::Scheduler;
use crate::cache::{BLOCK_PAGES, WINDOW_PAGES};
use crate::instrument::{Instruments, Log, NO_PROBE, Report, Reserve, SampledRows, Watch};
use crate::model::{CacheLayout, CacheSize, ModelWeights, StepShape};
use crate::ops::BLOCK_TOKENS;
use crate::step::Numerics;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineConfig {
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Requests that run at once.
    pub max_num_seqs: usize,
    /// Rows of the decode steps below that of `max_num_seqs` rows.
    pub decode_buckets: DecodeBuckets,
    /// Requests that may wait while `max_num_seqs` run. The sum of both bounds what is accepted, so that more may wait where
    /// pages are too few for `max_num_seqs`.
    pub max_num_queued: usize,
    /// Pages of 256 tokens; `None`: enough for every running request at full length.
    pub num_blocks: Option<usize>,
    pub numerics: Numerics,
    pub vocab: usize,
    /// Threads of the CPU path; `None`: one per core. Changes no bit of any token.
    pub threads: Option<usize>,
    /// What watches the steps. Changes neither a step nor its memory.
    pub instruments: Instruments,
}

impl EngineConfig {
    /// Positions that steps are built for: whole blocks.
    #[must_use]
    pub fn max_positions(&self) -> usize {
        self.max_model_len.next_multiple_of(BLOCK_TOKENS)
    }

    /// The pages of requests, the null pages, and what is reserved for instruments whether there are any or not.
    #[must_use]
    pub fn cache_size(&self) -> CacheSize {
        self.reserve().beside(CacheSize {
            // Those of each request, of the blocks under way, and the null page.
            window_pages: self
                .max_num_seqs
                .saturating_mul(WINDOW_PAGES)
                .saturating_add(RING * BLOCK_PAGES + 1),
            blocks: self.request_blocks().saturating_add(1),
            slots: self.max_num_seqs,
        })
    }

    /// Blocks that requests can have.
    fn request_blocks(&self) -> usize {
        let all = self.max_num_seqs.saturating_mul(self.max_model_len.div_ceil(BLOCK_TOKENS));
        self.num_blocks.unwrap_or(all)
    }

    /// What instruments store to when they run a step again.
    #[must_use]
    pub fn reserve(&self) -> Reserve {
        Reserve::new(self.max_num_seqs)
    }

    /// # Errors
    /// [`StartError::Zero`] for a size that leaves nothing to run, [`StartError::TooLarge`] for one whose positions or pages
    /// an i32 of a step's inputs cannot name.
    pub fn check(&self) -> Result<(), StartError> {
        let sizes = [
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("num_pages", self.num_blocks.unwrap_or(1)),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(StartError::Zero(what));
        }
        let CacheSize { window_pages, blocks, .. } = self.cache_size();
        let named = [
            ("max_model_len", self.max_model_len.saturating_add(BLOCK_TOKENS)),
            ("max_num_seqs: window pages", window_pages),
            ("num_pages", blocks),
        ];
        let large = named.into_iter().find(|(_, size)| i32::try_from(*size).is_err());
        large.map_or(Ok(()), |(what, size)| Err(StartError::TooLarge { what, size }))
    }

    /// The shapes that steps are built for: the decode buckets ascending, then prefill.
    #[must_use]
    pub fn shapes(&self) -> Vec<StepShape> {
        let mut shapes = decode_shapes(&self.decode_buckets, self.max_num_seqs, self.max_positions());
        shapes.push(StepShape::prefill(self.max_positions()));
        shapes
    }

    /// Builds, plans and proves every step, and the loop over every ordered pair of them.
    ///
    /// # Errors
    /// [`Unprovable`]: the engine must not start.
    pub fn prepare(&self, weights: &ModelWeights, layout: &CacheLayout) -> Result<Vec<Prepared>, Unprovable> {
        let shapes = self.shapes().into_iter();
        let steps = shapes.map(|shape| prepare(weights, layout, self.numerics, shape));
        let steps = steps.collect::<Result<Vec<_>, _>>()?;
        prove_steps(&steps)?;
        Ok(steps)
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("{what}: {size} cannot be numbered in the 31 bits that a step has for it")]
    TooLarge { what: &'static str, size: usize },
    #[error(
        "caches and steps take {bytes} bytes of memory, which this system does not give; take a smaller max_model_len, \
         max_num_seqs or num_pages"
    )]
    Memory { bytes: usize },
    #[error("the engine thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the worker threads could not be started: {0}")]
    Workers(#[from] rayon::ThreadPoolBuildError),
    #[error("the instruments certify nothing here: {0}")]
    Instruments(String),
}

/// State shared between callers and the engine thread.
#[derive(Debug, Default)]
struct Shared {
    stats: Mutex<Stats>,
    dead: Mutex<Option<String>>,
    draining: AtomicBool,
    /// Requests accepted and not yet ended: each gives its place back itself.
    taken: Arc<AtomicUsize>,
    accepted: AtomicU64,
    rejected: AtomicU64,
    next_id: AtomicU64,
    /// Of the instruments.
    log: Log,
}

/// A running engine. Dropping it aborts what runs and joins the thread.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    shared: Arc<Shared>,
    submit: Mutex<Option<Sender<Waiting>>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine thread on a device whose steps were prepared with the same `config` and `layout`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        config: EngineConfig,
        layout: CacheLayout,
        mut device: Box<dyn Device>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let log = Log::default();
        let watch = watch(&config, &layout, device.as_mut(), log.clone())?;
        let runner = Runner::new(device, watch);
        let scheduler = Scheduler::new(runner, layout, &config);
        let stats = Mutex::new(scheduler.stats());
        let shared = Arc::new(Shared { stats, log, ..Shared::default() });
        let (submit, requests) = channel();
        let workers = rayon::ThreadPoolBuilder::new().num_threads(config.threads.unwrap_or(0)).build()?;
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || workers.install(|| serve(scheduler, requests, &shared))
        })?;
        Ok(Self { config, shared, submit: Mutex::new(Some(submit)), thread: Some(thread) })
    }

    fn check(&self, request: &GenerateRequest) -> Result<(), EngineError> {
        let invalid = |field, message: String| Err(EngineError::Invalid { field, message });
        let (prompt, limit) = (request.prompt.len(), self.config.max_model_len);
        if prompt == 0 {
            return invalid("prompt", "must hold at least one token".to_owned());
        }
        if request.max_tokens == 0 {
            return invalid("max_tokens", "must be at least 1".to_owned());
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= self.config.vocab) {
            return invalid(
                "prompt",
                format!("token id {id} is not below the vocabulary size {}", self.config.vocab),
            );
        }
        let total = prompt.saturating_add(request.max_tokens);
        if total > limit {
            return Err(EngineError::ContextLength { prompt, max_tokens: request.max_tokens, limit });
        }
        let needed = total.div_ceil(BLOCK_TOKENS);
        let total = self.config.request_blocks();
        if needed > total {
            return Err(EngineError::OutOfPages { needed, total });
        }
        check_sampling(request)
    }

    fn try_submit(&self, request: GenerateRequest) -> Result<RequestHandle, EngineError> {
        if let Some(why) = self.dead() {
            return Err(EngineError::Dead(why));
        }
        if self.shared.draining.load(Ordering::Acquire) {
            return Err(EngineError::Draining);
        }
        self.check(&request)?;
        let limit = self.config.max_num_queued.saturating_add(self.config.max_num_seqs);
        let taken = self.shared.taken.fetch_add(1, Ordering::AcqRel);
        if taken >= limit {
            self.shared.taken.fetch_sub(1, Ordering::AcqRel);
            let queued = taken.saturating_sub(self.config.max_num_seqs);
            return Err(EngineError::QueueFull { queued, limit: self.config.max_num_queued });
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = tokio::sync::mpsc::channel(request.max_tokens + 1);
        let waiting = Waiting { id, request, reader: Reader::new(sender, Arc::clone(&self.shared.taken)) };
        let submit = self.submit.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = submit.as_ref().map(|s| s.send(waiting));
        match sent {
            Some(Ok(())) => Ok(RequestHandle { id, events }),
            _ => Err(EngineError::Dead("the engine thread has ended".to_owned())),
        }
    }
}

/// The instruments that are on, each having shown that it works on this device.
fn watch(
    config: &EngineConfig,
    layout: &CacheLayout,
    device: &mut dyn Device,
    log: Log,
) -> Result<Option<Watch>, StartError> {
    if !config.instruments.any() {
        return Ok(None);
    }
    let steps = device.steps();
    let probe = device.probe().ok_or_else(|| NO_PROBE.to_owned());
    let watch = probe
        .and_then(|probe| Watch::new(&config.instruments, layout, &steps, config.max_num_seqs, probe, log));
    watch.map(Some).map_err(StartError::Instruments)
}

fn check_sampling(request: &GenerateRequest) -> Result<(), EngineError> {
    let s = &request.sampling;
    let invalid = |field, message: String| Err(EngineError::Invalid { field, message });
    if !(s.temperature.is_finite() && s.temperature >= 0.0) {
        return invalid(
            "temperature",
            format!("must be a finite number of at least 0, found {}", s.temperature),
        );
    }
    if !(s.top_p > 0.0 && s.top_p <= 1.0) {
        return invalid("top_p", format!("must be above 0 and at most 1, found {}", s.top_p));
    }
    if !(0.0..=1.0).contains(&s.min_p) {
        return invalid("min_p", format!("must be between 0 and 1, found {}", s.min_p));
    }
    match s.top_logprobs {
        Some(n) if n > 20 => invalid("top_logprobs", format!("must be at most 20, found {n}")),
        _ => Ok(()),
    }
}

impl Generate for Engine {
    fn submit(&self, request: GenerateRequest) -> Result<RequestHandle, EngineError> {
        let result = self.try_submit(request);
        let counter = if result.is_ok() { &self.shared.accepted } else { &self.shared.rejected };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn stats(&self) -> Stats {
        let stats = *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        Stats {
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            rejected: self.shared.rejected.load(Ordering::Relaxed),
            ..stats
        }
    }

    fn instruments(&self) -> Option<Report> {
        self.config.instruments.any().then(|| self.shared.log.report())
    }

    fn sampled(&self) -> SampledRows {
        self.shared.log.sampled()
    }

    fn max_model_len(&self) -> usize {
        self.config.max_model_len
    }

    fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    fn dead(&self) -> Option<String> {
        self.shared.dead.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.drain();
        drop(self.submit.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was caught and recorded there.
            let _recorded = thread.join();
        }
    }
}

/// The engine thread: rounds while there is work, sleep while there is none, until the last handle is gone.
fn serve(mut scheduler: Scheduler, requests: Receiver<Waiting>, shared: &Shared) {
    let result = catch_unwind(AssertUnwindSafe(|| rounds(&mut scheduler, &requests, shared)));
    let why = match result {
        Ok(Ok(())) => "it was shut down".to_owned(),
        Ok(Err(why)) => why,
        Err(panic) => panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without words")
            .to_owned(),
    };
    *shared.dead.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
    while let Ok(waiting) = requests.try_recv() {
        scheduler.enqueue(waiting);
    }
    scheduler.fail_all(&EngineError::Dead(why));
    publish(&scheduler, shared);
}

fn rounds(scheduler: &mut Scheduler, requests: &Receiver<Waiting>, shared: &Shared) -> Result<(), String> {
    loop {
        if scheduler.idle() {
            match requests.recv() {
                Ok(waiting) => scheduler.enqueue(waiting),
                Err(_) => return Ok(()),
            }
        }
        loop {
            match requests.try_recv() {
                Ok(waiting) => scheduler.enqueue(waiting),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        scheduler.round()?;
        publish(scheduler, shared);
    }
}

/// Makes the counters visible.
fn publish(scheduler: &Scheduler, shared: &Shared) {
    *shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = scheduler.stats();
}
