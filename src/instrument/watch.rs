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
use crate::engine::{Device, Prepared, Wanted};
use crate::model::CacheLayout;
use crate::step::HostIo;

/// Why there is no [`Watch`] on some devices.
pub(crate) const NO_PROBE: &str = "this device cannot be read between steps";

/// Differences of one step that are logged, the first layers first: later ones follow from them.
const LINES: usize = 4;

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

    fn add(&mut self, prepared: &Prepared, live: &HostIo) {
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

/// A step about to be launched.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Number of the run, from 1.
    pub step: u64,
    /// Which of the prepared steps, and the slot of the ring with its inputs.
    pub index: usize,
    pub slot: usize,
    pub stored: Vec<Stored>,
}

/// A launched step that has not been waited for.
#[derive(Debug)]
pub struct UnderWay {
    launch: Launch,
    sample: Option<Sample>,
    /// Faults put into the step; `None`: it runs as it is.
    tampered: Option<usize>,
}

/// The instruments that are on.
#[derive(Debug)]
pub struct Watch {
    steps: Arc<[Prepared]>,
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
        let watch = Self {
            steps: Arc::clone(steps),
            canary: canary.transpose()?,
            differential,
            injector,
            log,
            pools,
        };
        watch.publish();
        Ok(watch)
    }

    /// Whether run number `step` must be launched when no other is under way, and waited for before the next: what is copied
    /// before and compared after it is then of this step alone. The step itself is the same.
    #[must_use]
    pub fn alone(&self, step: u64) -> bool {
        self.injector.is_some() || self.differential.as_ref().is_some_and(|d| d.due(step))
    }

    /// Launches a step, with faults inside it if there are to be any.
    ///
    /// # Errors
    /// A sentence; the engine ends with it.
    pub fn launch(
        &mut self,
        launch: Launch,
        wanted: &Wanted,
        device: &mut dyn Device,
    ) -> Result<UnderWay, String> {
        let mut sample = None;
        let prepared = &self.steps[launch.index];
        if let Some(differential) = &mut self.differential {
            let which = (launch.index, prepared);
            let before =
                |live: &HostIo, probe: &mut dyn Probe| differential.before(launch.step, which, live, probe);
            sample = look(&launch, device, before)?;
        }
        let tampered = self.run_tampered(&launch, device)?;
        if tampered.is_none() {
            let all = Wanted::all(&self.steps[launch.index].step);
            device.launch(launch.index, launch.slot, if sample.is_some() { &all } else { wanted })?;
        }
        Ok(UnderWay { launch, sample, tampered })
    }

    fn run_tampered(&mut self, launch: &Launch, device: &mut dyn Device) -> Result<Option<usize>, String> {
        let Some(injector) = self.injector.as_mut().filter(|i| i.fault().kind.inside()) else {
            return Ok(None);
        };
        let count = Cell::new(0);
        let live = device.io(launch.index, launch.slot);
        let mut tampers: Vec<Tamper<'_>> =
            injector.tampers(launch.step, &self.steps[launch.index], live, &count);
        if tampers.is_empty() {
            return Ok(None);
        }
        let probe = device.probe().ok_or(NO_PROBE)?;
        probe.run_tampered(launch.index, launch.slot, &mut tampers)?;
        drop(tampers);
        injector.counted(count.get());
        Ok(Some(count.get()))
    }

    /// Waits for a step and looks at what it left.
    ///
    /// # Errors
    /// A sentence; the engine ends with it.
    pub fn wait(
        &mut self,
        under_way: UnderWay,
        caches: &Caches,
        device: &mut dyn Device,
    ) -> Result<(), String> {
        let UnderWay { launch, sample, tampered } = under_way;
        if tampered.is_none() {
            device.wait(launch.index, launch.slot)?;
        }
        look(&launch, device, |live, probe| {
            let hit = tampered.unwrap_or(0) + self.inject_rows(&launch, live, probe)?;
            if let Some(sample) = &sample {
                self.compare(&launch, sample, hit, live, probe)?;
            }
            self.check(&launch, caches, live, probe)?;
            if let Some(injector) = &mut self.injector {
                injector.pages(launch.step, &launch.stored, &self.pools, probe)?;
            }
            Ok(())
        })?;
        self.publish();
        Ok(())
    }

    fn inject_rows(
        &mut self,
        launch: &Launch,
        live: &HostIo,
        probe: &mut dyn Probe,
    ) -> Result<usize, String> {
        let Some(injector) = &mut self.injector else { return Ok(0) };
        injector.rows(launch.step, &self.steps[launch.index], live, &self.pools, probe)
    }

    fn check(
        &mut self,
        launch: &Launch,
        caches: &Caches,
        live: &HostIo,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        let Some(canary) = &mut self.canary else { return Ok(()) };
        canary.history().push(launch.step, launch.index, live);
        canary.record(launch.step, &launch.stored, caches, probe)?;
        let hits = canary.check(launch.step, caches, probe)?;
        for hit in &hits {
            tracing::error!("{hit}");
        }
        if let Some(injector) = &mut self.injector {
            injector.canary(&hits, &self.pools, caches);
        }
        Ok(())
    }

    fn compare(
        &mut self,
        launch: &Launch,
        sample: &Sample,
        hit: usize,
        live: &HostIo,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        let Some(differential) = &mut self.differential else { return Ok(()) };
        let prepared = &self.steps[launch.index];
        let found: Differences = differential.after(sample, prepared, live, probe)?;
        let lines = found.lines(launch.step, &prepared.step.shape.to_string());
        for line in lines.iter().take(LINES) {
            tracing::error!("{line}");
        }
        if lines.len() > LINES {
            tracing::error!(
                "diff step={} and {} more layers and quantities",
                launch.step,
                lines.len() - LINES
            );
        }
        if let Some(injector) = &mut self.injector {
            injector.sampled(hit, !found.all.is_empty());
        }
        self.log.0.lock().unwrap_or_else(PoisonError::into_inner).1.add(prepared, live);
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
    launch: &Launch,
    device: &mut dyn Device,
    with: impl FnOnce(&HostIo, &mut dyn Probe) -> Result<R, String>,
) -> Result<R, String> {
    let live = std::mem::take(device.io(launch.index, launch.slot));
    let seen = device.probe().ok_or_else(|| NO_PROBE.to_owned()).and_then(|probe| with(&live, probe));
    *device.io(launch.index, launch.slot) = live;
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
