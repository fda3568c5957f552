//! The instruments of one engine, around each of its steps.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::canary::{Canary, Stored};
use super::differential::{Differences, Differential, Sample};
use super::inject::Injector;
use super::pools::Pools;
use super::probe::Probe;
use super::report::Report;
use super::shadow::Reserve;
use super::{Instruments, Tamper};
use crate::cache::Caches;
use crate::engine::{Device, Prepared};
use crate::model::CacheLayout;
use crate::step::Memory;

/// Why there is no [`Watch`] on some devices.
pub(crate) const NO_PROBE: &str = "this device cannot be read between steps";

/// Rows that [`SampledRows`] remembers.
const ROWS: usize = 1 << 20;

/// Tokens that were sampled in steps which ran a second time, by the seed of their request and their position: so that a
/// rate of wrong tokens can be told for those steps and for the others. The first million is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledRows(HashSet<(u64, usize)>);

impl SampledRows {
    #[must_use]
    pub fn contains(&self, seed: u64, position: usize) -> bool {
        self.0.contains(&(seed, position))
    }

    fn add(&mut self, prepared: &Prepared, live: &Memory) {
        let io = &prepared.step.io;
        let rows = live.host::<u64>(&io.seed).iter().zip(live.host::<i32>(&io.sample_position));
        for (&seed, &position) in rows {
            if let Some(position) = usize::try_from(position).ok().filter(|_| self.0.len() < ROWS) {
                self.0.insert((seed, position));
            }
        }
    }
}

/// What the instruments have seen so far, for whoever holds a share.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<(Report, SampledRows)>>);

impl Log {
    #[must_use]
    pub fn report(&self) -> Report {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    #[must_use]
    pub fn sampled(&self) -> SampledRows {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// One run of a step.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// Number of the run, from 1.
    pub step: u64,
    /// Which of the prepared steps.
    pub index: usize,
    pub prepared: &'a Prepared,
    pub caches: &'a Caches,
    pub stored: &'a [Stored<'a>],
}

/// Between [`Watch::before`] and [`Watch::after`].
#[derive(Debug, Default)]
pub struct Pending {
    sample: Option<Sample>,
    /// Faults inside the step.
    hit: usize,
}

/// The instruments that are on.
#[derive(Debug)]
pub struct Watch {
    pools: Pools,
    canary: Option<Canary>,
    differential: Option<Differential>,
    injector: Option<Injector>,
    log: Log,
}

impl Watch {
    /// The instruments of an engine of up to `rows` requests; each shows first that it would see what it is there for.
    ///
    /// # Errors
    /// A sentence: an instrument that could not certify anything does not start.
    pub fn new(
        instruments: &Instruments,
        layout: &CacheLayout,
        steps: &Arc<[Prepared]>,
        rows: usize,
        probe: &mut dyn Probe,
        log: Log,
    ) -> Result<Self, String> {
        let first = steps.first().ok_or("an engine without steps has nothing to watch")?;
        let pools = Pools::of(layout, &first.step.graph)?;
        let reserve = Reserve::new(rows);
        let canary = instruments
            .canary
            .map(|budget| Canary::new(&pools, Arc::clone(steps), budget, reserve.blocks.start, probe));
        let differential = instruments
            .diff_every
            .map(|every| Differential::new(pools.clone(), layout.clone(), reserve, every));
        let injector = instruments.inject.map(Injector::new);
        let watch = Self { canary: canary.transpose()?, differential, injector, log, pools };
        watch.publish();
        Ok(watch)
    }

    /// Runs a step on a device that waits for it.
    ///
    /// # Errors
    /// A sentence; the engine ends with it.
    pub fn run(&mut self, ran: &Ran<'_>, device: &mut dyn Device) -> Result<(), String> {
        let mut pending = look(ran.index, device, |live, probe| self.before(ran, live, probe))?;
        if !self.run_tampered(ran, &mut pending, device)? {
            device.run(ran.index)?;
        }
        look(ran.index, device, |live, probe| self.after(ran, pending, live, probe))
    }

    /// Before a step whose inputs lie in `live`.
    ///
    /// # Errors
    /// A sentence; the engine ends with it.
    pub fn before(&mut self, ran: &Ran<'_>, live: &Memory, probe: &mut dyn Probe) -> Result<Pending, String> {
        let sample = match &mut self.differential {
            Some(differential) => differential.before(ran.step, (ran.index, ran.prepared), live, probe)?,
            None => None,
        };
        Ok(Pending { sample, hit: 0 })
    }

    /// Runs the step with faults inside it, if there are to be any; false: it is to run as it is.
    ///
    /// # Errors
    /// A sentence; the engine ends with it.
    pub fn run_tampered(
        &mut self,
        ran: &Ran<'_>,
        pending: &mut Pending,
        device: &mut dyn Device,
    ) -> Result<bool, String> {
        let Some(injector) = self.injector.as_mut().filter(|i| i.fault().kind.inside()) else {
            return Ok(false);
        };
        let count = Cell::new(0);
        let mut tampers: Vec<Tamper<'_>> =
            injector.tampers(ran.step, ran.prepared, device.io(ran.index), &count);
        if tampers.is_empty() {
            return Ok(false);
        }
        device.probe().ok_or(NO_PROBE)?.run_tampered(ran.index, &mut tampers)?;
        drop(tampers);
        pending.hit = count.get();
        injector.counted(pending.hit);
        Ok(true)
    }

    /// After the step, whose inputs and outputs lie in `live`.
    ///
    /// # Errors
    /// A sentence; the engine ends with it.
    pub fn after(
        &mut self,
        ran: &Ran<'_>,
        mut pending: Pending,
        live: &Memory,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        if let Some(injector) = &mut self.injector {
            pending.hit += injector.rows(ran.step, ran.prepared, live, &self.pools, probe)?;
        }
        if let Some(sample) = &pending.sample {
            self.compare(ran, sample, pending.hit, live, probe)?;
        }
        if let Some(canary) = &mut self.canary {
            canary.history().push(ran.step, ran.index, live);
            canary.record(ran.step, ran.stored, probe)?;
            let hits = canary.check(ran.step, ran.caches, probe)?;
            for hit in &hits {
                tracing::error!("{hit}");
            }
            if let Some(injector) = &mut self.injector {
                injector.canary(&hits, &self.pools, ran.caches);
            }
        }
        if let Some(injector) = &mut self.injector {
            injector.pages(ran.step, ran.stored, &self.pools, probe)?;
        }
        self.publish();
        Ok(())
    }

    fn compare(
        &mut self,
        ran: &Ran<'_>,
        sample: &Sample,
        hit: usize,
        live: &Memory,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        let Some(differential) = &mut self.differential else { return Ok(()) };
        let found: Differences = differential.after(sample, ran.prepared, live, probe)?;
        for line in found.lines(ran.step, &ran.prepared.step.shape.to_string()) {
            tracing::error!("{line}");
        }
        if let Some(injector) = &mut self.injector {
            injector.sampled(hit, !found.all.is_empty());
        }
        self.log.0.lock().unwrap_or_else(PoisonError::into_inner).1.add(ran.prepared, live);
        Ok(())
    }

    fn publish(&self) {
        let report = Report {
            canary: self.canary.as_ref().map(|c| c.report().clone()),
            differential: self.differential.as_ref().map(|d| d.report().clone()),
            inject: self.injector.as_ref().map(Injector::report),
        };
        self.log.0.lock().unwrap_or_else(PoisonError::into_inner).0 = report;
    }
}

/// Lends the inputs and outputs of a step beside the rest of the device.
fn look<R>(
    index: usize,
    device: &mut dyn Device,
    with: impl FnOnce(&Memory, &mut dyn Probe) -> Result<R, String>,
) -> Result<R, String> {
    let live = std::mem::take(device.io(index));
    let seen = device.probe().ok_or_else(|| NO_PROBE.to_owned()).and_then(|probe| with(&live, probe));
    *device.io(index) = live;
    seen
}

impl Drop for Watch {
    /// The summary, when the engine ends.
    fn drop(&mut self) {
        for line in self.log.report().lines() {
            tracing::info!("{line}");
        }
    }
}
