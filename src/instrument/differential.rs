//! The differential: the same graph, on the same plan, run again one node after another beside the run that served.
//!
//! Every so many steps what the step is about to write over is copied to pages and slots that no request holds. After the
//! step its graph runs again with inputs that point its stores there, and everything that both runs left is compared bit by
//! bit: logits, selected rows, experts, cache rows, states. In the first clean step that has a place for it, each comparison
//! has to see a fault put into the second run; one that has not is not certified.

use std::collections::HashMap;

use super::pools::Pools;
use super::probe::Probe;
use super::report::{DifferentialReport, Quantity};
use super::second_run::{Second, SecondRun};
use super::shadow::{Reserve, Shadow};
use crate::engine::Prepared;
use crate::model::CacheLayout;
use crate::step::HostIo;

/// What differed in one quantity of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub quantity: Quantity,
    pub layer: Option<usize>,
    /// Rows, entries or bytes that differ.
    pub count: usize,
    pub max_abs: f32,
    /// Rows whose best token differs.
    pub argmax: usize,
}

/// Everything that differed in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Differences {
    pub all: Vec<Difference>,
    pub logits_rows: usize,
    pub selected_rows: usize,
}

impl Differences {
    pub(super) fn add(&mut self, quantity: Quantity, layer: Option<usize>, count: usize) {
        if count > 0 {
            self.all.push(Difference { quantity, layer, count, max_abs: 0.0, argmax: 0 });
        }
    }

    #[must_use]
    pub fn of(&self, quantity: Quantity) -> usize {
        self.all.iter().filter(|d| d.quantity == quantity).map(|d| d.count).sum()
    }

    /// A line for each difference.
    #[must_use]
    pub fn lines(&self, step: u64, bucket: &str) -> Vec<String> {
        let line = |d: &Difference| {
            let layer = d.layer.map_or_else(|| "head".to_owned(), |l| l.to_string());
            let what = match d.quantity {
                Quantity::Logits => {
                    format!("max_abs={} argmax_dis={} rows_dis={}", d.max_abs, d.argmax, d.count)
                }
                Quantity::Selected => format!("topk_dis={}", d.count),
                quantity => format!("{}_dis={}", quantity.name(), d.count),
            };
            format!("diff step={step} bucket={bucket:?} layer={layer} {what}")
        };
        self.all.iter().map(line).collect()
    }
}

/// A step between its two runs.
#[derive(Clone, Debug)]
pub struct Sample {
    index: usize,
    shadow: Shadow,
}

#[derive(Clone, Debug)]
pub struct Differential {
    pools: Pools,
    layout: CacheLayout,
    reserve: Reserve,
    second: HashMap<usize, Second>,
    report: DifferentialReport,
}

impl Differential {
    #[must_use]
    pub fn new(pools: Pools, layout: CacheLayout, reserve: Reserve, every: u64) -> Self {
        let report = DifferentialReport { every: every.max(1), ..DifferentialReport::default() };
        Self { pools, layout, reserve, second: HashMap::new(), report }
    }

    #[must_use]
    pub fn report(&self) -> &DifferentialReport {
        &self.report
    }

    /// Whether run number `step` is one to run again.
    #[must_use]
    pub fn due(&self, step: u64) -> bool {
        step.is_multiple_of(self.report.every)
    }

    /// Before run number `step`: copies what it will write over, if its turn has come.
    ///
    /// # Errors
    /// A sentence: the step stores to more than is reserved, or the device's.
    pub fn before(
        &mut self,
        step: u64,
        (index, prepared): (usize, &Prepared),
        live: &HostIo,
        probe: &mut dyn Probe,
    ) -> Result<Option<Sample>, String> {
        self.report.steps += 1;
        if !self.due(step) {
            return Ok(None);
        }
        let shadow = Shadow::of(prepared, live, &self.reserve).map_err(|error| error.to_string())?;
        shadow.copy(&self.pools, &self.layout, probe)?;
        Ok(Some(Sample { index, shadow }))
    }

    /// After the step, whose inputs and outputs lie in `live`: runs it again and compares.
    ///
    /// # Errors
    /// A sentence.
    pub fn after(
        &mut self,
        sample: &Sample,
        prepared: &Prepared,
        live: &HostIo,
        probe: &mut dyn Probe,
    ) -> Result<Differences, String> {
        let mut second = self.second.remove(&sample.index).unwrap_or_else(|| Second::new(prepared));
        second.first.clone_from(live);
        let run = SecondRun {
            prepared,
            shadow: &sample.shadow,
            pools: &self.pools,
            layout: &self.layout,
            index: sample.index,
        };
        run.again(&mut second, probe, &mut [])?;
        let found = run.compare(&second, probe)?;
        for quantity in Quantity::ALL {
            let open = !self.report.certified.contains(&quantity) && !self.report.blind.contains(&quantity);
            if open && found.of(quantity) == 0 {
                match run.sees(quantity, &mut second, probe)? {
                    Some(true) => self.report.certified.push(quantity),
                    Some(false) => self.report.blind.push(quantity),
                    None => {}
                }
            }
        }
        self.second.insert(sample.index, second);
        self.count(&found);
        Ok(found)
    }

    fn count(&mut self, found: &Differences) {
        let report = &mut self.report;
        report.sampled += 1;
        report.differing += u64::from(!found.all.is_empty());
        for (count, quantity) in report.by_quantity.iter_mut().zip(Quantity::ALL) {
            *count += u64::from(found.of(quantity) > 0);
        }
        for difference in found.all.iter().filter(|d| d.quantity == Quantity::Logits) {
            report.argmax_dis += difference.argmax as u64;
            report.max_abs = report.max_abs.max(difference.max_abs);
        }
        report.logits_rows += found.logits_rows as u64;
        report.selected_rows += found.selected_rows as u64;
        report.topk_dis += found.of(Quantity::Selected) as u64;
        report.experts_dis += found.of(Quantity::Experts) as u64;
    }
}
