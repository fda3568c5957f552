//! Puts faults into a running engine: between steps through the device's memory, and inside a step by changing a value
//! once it has been written. Draws depend on the fault's seed, the step and the layer alone.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::canary::{Hit, Stored};
use super::fault::{Fault, FaultKind};
use super::hash::mix;
use super::pools::{Pool, Pools, Role};
use super::probe::{Probe, Store, Tamper};
use super::report::InjectReport;
use crate::cache::{Caches, Owner, Page};
use crate::engine::Prepared;
use crate::ops::{BufferId, Mode, Op, Value};
use crate::step::{Graph, HostIo, NodeId, PoolId, Random};

/// Replaces selected rows by visible ones that were not selected: each with probability `rate`, or one of them. Rows stay in
/// ascending order. Returns how many were replaced; none if everything visible is selected.
pub fn replace_indices(
    selected: &mut [i32],
    visible: usize,
    rate: Option<f64>,
    random: &mut Random,
) -> usize {
    let chosen: std::collections::BTreeSet<i32> = selected.iter().copied().collect();
    let all = 0..i32::try_from(visible).unwrap_or(i32::MAX);
    let mut others: Vec<i32> = all.filter(|row| !chosen.contains(row)).collect();
    let mut replaced = 0;
    for at in picks(selected.len(), rate, random) {
        if others.is_empty() || selected[at] < 0 {
            continue;
        }
        selected[at] = others.swap_remove(random.below(others.len()));
        replaced += 1;
    }
    if replaced > 0 {
        selected.sort_unstable();
    }
    replaced
}

/// Exchanges scores with those of other rows: each with probability `rate`, or the best with the worst. Returns how many
/// exchanges changed a score.
pub fn exchange_scores(scores: &mut [f32], rate: Option<f64>, random: &mut Random) -> usize {
    // As top-k orders them: NaN below every number, both zeros equal.
    let rank = |score: f32| if score.is_nan() { (false, 0.0) } else { (true, score + 0.0) };
    let order = |a: &usize, b: &usize| {
        let (a, b) = (rank(scores[*a]), rank(scores[*b]));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    let pairs: Vec<(usize, usize)> = match rate {
        // The first of the best, which top-k takes, and the last of the worst, which it does not.
        None => {
            let best = (0..scores.len()).rev().max_by(order);
            best.zip((0..scores.len()).rev().min_by(order)).into_iter().collect()
        }
        Some(_) => {
            let hit = picks(scores.len(), rate, random);
            hit.into_iter().map(|at| (at, random.below(scores.len()))).collect()
        }
    };
    let changes = pairs.iter().filter(|&&(a, b)| {
        let change = rank(scores[a]) != rank(scores[b]);
        scores.swap(a, b);
        change
    });
    changes.count()
}

/// Which of `count` items are hit: each with probability `rate`, or one.
fn picks(count: usize, rate: Option<f64>, random: &mut Random) -> Vec<usize> {
    match rate {
        None if count == 0 => Vec::new(),
        None => vec![random.below(count)],
        Some(rate) => (0..count).filter(|_| uniform(random) < rate).collect(),
    }
}

/// A number in [0, 1).
#[allow(clippy::cast_precision_loss)]
fn uniform(random: &mut Random) -> f64 {
    (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

/// A place in a step where a fault inside it strikes.
struct Site {
    layer: usize,
    after: NodeId,
    value: Value,
    /// Elements of one token's row.
    width: usize,
    k: usize,
}

fn sites(fault: &Fault, prepared: &Prepared) -> Vec<Site> {
    let graph = &prepared.step.graph;
    let mut sites = Vec::new();
    for (layer, selected) in prepared.step.io.selected.iter().enumerate().filter(|(l, _)| fault.hits(*l)) {
        let Some(topk) = selected.and_then(|s| writer(graph, s.buffer)) else { continue };
        let Op::TopK(op) = &graph.node(topk).op else { continue };
        let site = match fault.kind {
            FaultKind::Index => Some(Site { layer, after: topk, value: op.selected, width: op.k, k: op.k }),
            FaultKind::Score => writer(graph, op.logits.buffer).map(|after| Site {
                layer,
                after,
                value: op.logits,
                width: op.width,
                k: op.k,
            }),
            _ => None,
        };
        sites.extend(site);
    }
    sites
}

/// The node that writes a buffer of the step.
pub(super) fn writer(graph: &Graph, buffer: BufferId) -> Option<NodeId> {
    let writes = |id: &NodeId| {
        let regions = graph.node(*id).op.regions();
        regions.iter().any(|a| a.mode == Mode::Write && a.region.buffer == buffer)
    };
    graph.node_ids().find(writes)
}

/// Puts one [`Fault`] where it belongs, step after step.
#[derive(Clone, Debug)]
pub struct Injector {
    fault: Fault,
    /// Full pages with a fault in them that the canary has not told yet.
    pending: BTreeMap<(PoolId, u32), (Owner, Page)>,
    report: InjectReport,
}

impl Injector {
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        let report = InjectReport { spec: fault.to_string(), ..InjectReport::default() };
        Self { fault, pending: BTreeMap::new(), report }
    }

    #[must_use]
    pub fn report(&self) -> InjectReport {
        InjectReport { pending: self.pending.len() as u64, ..self.report.clone() }
    }

    #[must_use]
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    fn strikes(&self, step: u64) -> bool {
        self.fault.step.is_none_or(|s| s == step)
    }

    fn random(&self, step: u64, layer: usize) -> Random {
        let place =
            mix(u32::try_from(step & 0xffff_ffff).unwrap_or(0), u32::try_from(layer + 1).unwrap_or(0));
        Random::new(self.fault.seed ^ place)
    }

    /// The faults inside run number `step`, whose inputs lie in `live`; `count` counts what they hit.
    #[must_use]
    pub fn tampers<'c>(
        &self,
        step: u64,
        prepared: &Prepared,
        live: &HostIo,
        count: &'c Cell<usize>,
    ) -> Vec<Tamper<'c>> {
        if !self.strikes(step) || !self.fault.kind.inside() {
            return Vec::new();
        }
        let positions = live.host::<i32>(&prepared.step.io.position);
        let visible: Vec<usize> =
            positions.iter().map(|&p| usize::try_from(p).map_or(0, |p| (p + 1) / 4)).collect();
        let Fault { kind, rate, .. } = self.fault;
        let tamper = |site: Site| {
            let (visible, mut random) = (visible.clone(), self.random(step, site.layer));
            let edit = move |bytes: &mut [u8]| {
                let rows: Vec<usize> = (0..visible.len()).filter(|&row| visible[row] > site.k).collect();
                let one = rate.is_none();
                let rows = if one {
                    picks(rows.len(), None, &mut random).iter().map(|&i| rows[i]).collect()
                } else {
                    rows
                };
                for row in rows {
                    let bytes = &mut bytes[row * site.width * 4..(row + 1) * site.width * 4];
                    let hit = match kind {
                        FaultKind::Index => {
                            replace_indices(bytemuck::cast_slice_mut(bytes), visible[row], rate, &mut random)
                        }
                        _ => {
                            let scores: &mut [f32] = bytemuck::cast_slice_mut(bytes);
                            let seen = visible[row].min(scores.len());
                            exchange_scores(&mut scores[..seen], rate, &mut random)
                        }
                    };
                    count.set(count.get() + hit);
                }
            };
            Tamper { after: site.after, value: site.value, edit: Box::new(edit) }
        };
        let mut tampers: Vec<Tamper<'c>> = sites(&self.fault, prepared).into_iter().map(tamper).collect();
        tampers.sort_by_key(|t| t.after);
        tampers
    }

    /// Tells the report what the faults inside a step have hit.
    pub fn counted(&mut self, hit: usize) {
        self.report.injected += hit as u64;
    }

    fn pools<'p>(&self, pools: &'p Pools) -> impl Iterator<Item = &'p Pool> + use<'p> {
        let fault = self.fault;
        pools.iter().filter(move |p| fault.hits(p.layer) && fault.pool.is_none_or(|role| role == p.role))
    }

    /// `row` faults: rows that run number `step` has stored. Returns how many.
    ///
    /// # Errors
    /// The device's sentence.
    pub fn rows(
        &mut self,
        step: u64,
        prepared: &Prepared,
        live: &HostIo,
        pools: &Pools,
        probe: &mut dyn Probe,
    ) -> Result<usize, String> {
        if self.fault.kind != FaultKind::Row || !self.strikes(step) {
            return Ok(0);
        }
        let io = &prepared.step.io;
        let mut items: Vec<(&Pool, usize)> = Vec::new();
        for pool in self.pools(pools) {
            let slots = match (pool.role, pool.ratio) {
                (Role::Window, _) => io.window_slot,
                (_, 4) => io.c4_slot,
                _ => io.c128_slot,
            };
            let slots = live.host::<i64>(&slots).iter().filter_map(|&s| usize::try_from(s).ok());
            items.extend(slots.map(|slot| (pool, slot)));
        }
        let hit = picks(items.len(), self.fault.rate, &mut self.random(step, 0));
        for &at in &hit {
            let (pool, slot) = items[at];
            let base = slot / pool.page_rows * pool.page_bytes;
            turn(pool.id, base, pool.row(slot % pool.page_rows), probe)?;
        }
        self.report.injected += hit.len() as u64;
        Ok(hit.len())
    }

    /// `page` and `byte` faults: full pages of the requests whose tokens have just been stored.
    ///
    /// # Errors
    /// The device's sentence.
    pub fn pages(
        &mut self,
        step: u64,
        stored: &[Stored],
        pools: &Pools,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        if !matches!(self.fault.kind, FaultKind::Page | FaultKind::Byte) || !self.strikes(step) {
            return Ok(());
        }
        let mut items: Vec<(&Pool, Owner, Page)> = Vec::new();
        for pool in self.pools(pools) {
            let full = stored.iter().flat_map(|s| s.full(pool).map(|page| (s.sequence.owner, page)));
            items.extend(full.map(|(owner, page)| (pool, owner, page)));
        }
        let mut random = self.random(step, 0);
        if self.fault.kind == FaultKind::Page {
            for at in picks(items.len(), self.fault.rate, &mut random) {
                let (pool, owner, page) = items[at];
                let base = page.id as usize * pool.page_bytes;
                (0..pool.page_rows).try_for_each(|row| turn(pool.id, base, pool.row(row), probe))?;
                self.put(pool, owner, page);
            }
            return Ok(());
        }
        let bytes: usize = items.iter().map(|(pool, ..)| pool.page_bytes).sum();
        for mut at in picks(bytes, self.fault.rate, &mut random) {
            let mut of = items.iter().copied();
            let Some((pool, owner, page)) = of.find(|(pool, ..)| {
                let inside = at < pool.page_bytes;
                at -= if inside { 0 } else { pool.page_bytes };
                inside
            }) else {
                continue;
            };
            let at = page.id as usize * pool.page_bytes + at;
            let mut byte = [0];
            probe.read(Store::Pool(pool.id), at, &mut byte)?;
            probe.write(Store::Pool(pool.id), at, &[byte[0] ^ (1 << random.below(8))])?;
            self.put(pool, owner, page);
        }
        Ok(())
    }

    fn put(&mut self, pool: &Pool, owner: Owner, page: Page) {
        self.report.injected += 1;
        if self.pending.insert((pool.id, page.id), (owner, page)).is_none() {
            self.report.pages += 1;
        }
    }

    /// What the canary has seen; pages with a fault that have been given back are beyond it.
    pub fn canary(&mut self, hits: &[Hit], pools: &Pools, caches: &Caches) {
        for hit in hits {
            let pool = pools.iter().find(|p| p.name == hit.pool).map(|p| p.id);
            let found = pool.and_then(|id| self.pending.remove(&(id, hit.page)));
            self.report.found_by_canary += u64::from(found.is_some());
        }
        let before = self.pending.len();
        self.pending.retain(|(pool, _), (owner, page)| {
            let window = pools.get(*pool).is_some_and(|p| p.role == Role::Window);
            let pages = if window { &caches.windows } else { &caches.blocks };
            pages.check(*owner, *page).is_ok()
        });
        self.report.released += (before - self.pending.len()) as u64;
    }

    /// A step with `hit` faults in it was run again, and the comparison has seen them or not.
    pub fn sampled(&mut self, hit: usize, seen: bool) {
        if hit > 0 {
            self.report.sampled_steps += 1;
            self.report.found_by_differential += u64::from(seen);
        }
    }
}

/// Turns the top bit of each byte of a row's data.
fn turn(pool: PoolId, base: usize, row: &[Range<usize>], probe: &mut dyn Probe) -> Result<(), String> {
    let Some(data) = row.first() else { return Ok(()) };
    let mut bytes = vec![0; data.len()];
    probe.read(Store::Pool(pool), base + data.start, &mut bytes)?;
    bytes.iter_mut().for_each(|b| *b ^= 0x80);
    probe.write(Store::Pool(pool), base + data.start, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_rows_were_not_selected() {
        let mut random = Random::new(3);
        for rate in [None, Some(0.3), Some(1.0)] {
            let before: Vec<i32> = (0..40).map(|i| 2 * i).collect();
            let mut after = before.clone();
            let count = replace_indices(&mut after, 90, rate, &mut random);
            let new: Vec<&i32> = after.iter().filter(|i| !before.contains(i)).collect();
            assert_eq!(new.len(), count);
            assert!(after.is_sorted() && new.iter().all(|i| (0..90).contains(*i)), "{after:?}");
            assert!(if rate.is_none() { count == 1 } else { count > 4 }, "{rate:?}: {count}");
            after.dedup();
            assert_eq!(after.len(), 40);
        }
    }

    #[test]
    fn where_everything_is_selected_nothing_can_be_replaced() {
        let mut selected = [0, 1, 2, -1];
        assert_eq!(replace_indices(&mut selected, 3, Some(1.0), &mut Random::new(1)), 0);
        assert_eq!(selected, [0, 1, 2, -1]);
    }

    #[test]
    fn exchanged_scores_are_the_same_numbers_elsewhere() {
        let mut scores: Vec<f32> = (0..64u8).map(f32::from).collect();
        assert_eq!(exchange_scores(&mut scores, None, &mut Random::new(1)), 1);
        assert_eq!((scores[0], scores[63]), (63.0, 0.0));
        assert!(exchange_scores(&mut scores, Some(0.5), &mut Random::new(1)) > 10);
        scores.sort_by(f32::total_cmp);
        assert!(scores.iter().zip(0..64u8).all(|(s, i)| *s == f32::from(i)));
        assert_eq!(exchange_scores(&mut [], None, &mut Random::new(1)), 0);
        assert_eq!(exchange_scores(&mut [2.0; 9], None, &mut Random::new(1)), 0);
        assert_eq!(exchange_scores(&mut [0.0, -0.0], None, &mut Random::new(1)), 0);
        let mut tied = [0.0, 0.0, -1.0, 0.0, -1.0, -1.0];
        assert_eq!(exchange_scores(&mut tied, None, &mut Random::new(1)), 1);
        assert_eq!(tied, [-1.0, 0.0, -1.0, 0.0, -1.0, 0.0]);
    }
}
