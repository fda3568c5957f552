//! The reference: every session alone in its steps.

use std::num::NonZero;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::{StressArgs, bar, on_gpu, runtime, sized};
use crate::cli::{Device, InstrumentArgs, ModelArgs};
use crate::engine;
use crate::sessions::{Limits, Local, Model, Script, Session, play_all};

/// Engines beside each other on one GPU: one session alone keeps few of its multiprocessors busy.
const ENGINES_ON_A_GPU: usize = 8;

/// The sessions one after another, each alone in its steps: on a GPU serially on one stream. Several engines share them out;
/// each has its own weights, pools and steps.
pub(super) fn alone(args: &StressArgs, scripts: &[Script]) -> Result<Vec<Session>> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let engines = if on_gpu(args) { ENGINES_ON_A_GPU } else { args.model.threads.unwrap_or(cores) };
    let model = ModelArgs { instruments: InstrumentArgs::default(), ..sized(args, scripts, 1) };
    let model = if on_gpu(args) {
        args.gpu.reference(model)
    } else {
        ModelArgs { device: Device::Cpu, threads: Some(1), ..model }
    };
    let patient =
        Limits { concurrency: 1, timeout: Duration::from_secs(u64::from(u32::MAX)), ..args.limits() };
    let bar = bar(scripts.len(), "alone");
    let shares: Vec<&[Script]> = scripts.chunks(scripts.len().div_ceil(engines).max(1)).collect();
    let sessions = side_by_side(&shares, |share| {
        let loaded = engine::build(&model)?;
        let model = Model::Local(Local::new(&loaded));
        Ok(runtime()?.block_on(play_all(&model, share, patient, |_| bar.inc(1))))
    });
    bar.finish_and_clear();
    Ok(sessions?.into_iter().flatten().collect())
}

/// Does `each` of the items, all at once on threads of their own; the results are in the items' order.
///
/// # Errors
/// The first error in that order.
pub(super) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let running: Vec<_> = items.iter().map(|item| scope.spawn(|| each(item))).collect();
        let done = running
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(anyhow!("a thread has panicked"))));
        done.collect()
    })
}
