//! Faults in a second run that its comparison has to see, or else it certifies nothing.

use super::differential::Differences;
use super::inject::{replace_indices, writer};
use super::probe::{Probe, Store, Tamper};
use super::report::Quantity;
use super::second_run::{Inputs, Second, SecondRun, role_is, storing};
use crate::ops::{Mode, Value};
use crate::step::{Class, HostIo, Random};

/// Changes a row's elements, whatever their type.
type Edit = Box<dyn FnMut(&mut [i32])>;

impl SecondRun<'_> {
    /// Whether a fault in `quantity` of the second run is seen; `None`: this step has no place for one.
    pub(super) fn sees(
        &self,
        quantity: Quantity,
        second: &mut Second,
        probe: &mut dyn Probe,
    ) -> Result<Option<bool>, String> {
        let seen = |found: &Differences| found.of(quantity) > 0;
        match quantity {
            Quantity::Logits | Quantity::Selected | Quantity::Experts => {
                let Some(tamper) = self.tamper(quantity, &second.first) else { return Ok(None) };
                self.again(second, probe, &mut [tamper])?;
                Ok(Some(seen(&self.compare(second, probe)?)))
            }
            _ => {
                let Some((store, at)) = self.stored_byte(quantity, &second.first) else { return Ok(None) };
                self.again(second, probe, &mut [])?;
                let mut byte = [0];
                probe.read(store, at, &mut byte)?;
                probe.write(store, at, &[byte[0] ^ 1])?;
                let found = self.compare(second, probe)?;
                Ok(Some(seen(&found)))
            }
        }
    }

    /// A change of a value inside the second run.
    fn tamper(&self, quantity: Quantity, first: &HostIo) -> Option<Tamper<'static>> {
        let (graph, io) = (&self.prepared.step.graph, &self.prepared.step.io);
        let positions = first.host::<i32>(&io.position);
        let live = |t: &usize| positions[*t] >= 0;
        let (value, at, edit): (Value, usize, Edit) = match quantity {
            Quantity::Logits => {
                let rows = first.host::<i32>(&io.sample_rows);
                let sample = rows.iter().position(|r| *r >= 0)?;
                // The sign of every logit, so that another token is the best.
                let turn = |row: &mut [i32]| row.iter_mut().for_each(|bits| *bits ^= i32::MIN);
                (io.logits, sample * io.logits.len / rows.len(), Box::new(turn))
            }
            Quantity::Experts => {
                let row = (0..positions.len()).find(live)?;
                let experts = *io.experts.first()?;
                let width = experts.len / positions.len();
                let other = move |row: &mut [i32]| {
                    let unused = (0..).find(|id| !row[..width].contains(id)).unwrap_or(0);
                    row[0] = unused;
                };
                (experts, row * width, Box::new(other))
            }
            _ => {
                let selected = (*io.selected.iter().find(|s| s.is_some())?)?;
                let k = selected.len / positions.len();
                let visible = |t: usize| usize::try_from(positions[t] + 1).unwrap_or(0) / 4;
                let row = (0..positions.len()).find(|&t| visible(t) > k)?;
                let visible = visible(row);
                let other = move |row: &mut [i32]| {
                    let mut random = Random::new(0);
                    replace_indices(&mut row[..k], visible, None, &mut random);
                };
                (selected, row * k, Box::new(other))
            }
        };
        let after = writer(graph, value.buffer)?;
        let mut edit = edit;
        let edit = move |bytes: &mut [u8]| edit(&mut bytemuck::cast_slice_mut::<u8, i32>(bytes)[at..]);
        Some(Tamper { after, value, edit: Box::new(edit) })
    }

    /// A byte that the second run stores.
    fn stored_byte(&self, quantity: Quantity, first: &HostIo) -> Option<(Store, usize)> {
        let graph = &self.prepared.step.graph;
        let contents = Inputs { prepared: self.prepared, memory: first };
        for node in storing(self.prepared) {
            let touched = node.op.touched(&contents).ok()?;
            for write in touched.iter().filter(|t| t.mode == Mode::Write) {
                let at = write.ranges.first()?.start;
                let moved = |bytes: usize, to: Option<&u32>| Some(*to? as usize * bytes + at % bytes);
                match graph.buffer(write.buffer).class {
                    Class::Pool(id) => {
                        let Some(pool) = self.pools.get(id).filter(|p| role_is(p.role) == quantity) else {
                            continue;
                        };
                        let page = u32::try_from(at / pool.page_bytes).ok()?;
                        let to = self.shadow.pages(pool.role).get(&page);
                        return Some((Store::Pool(id), moved(pool.page_bytes, to)?));
                    }
                    Class::State(id) if quantity == Quantity::State => {
                        let bytes = self.layout.states().find(|s| s.id == id)?.len * 4;
                        let slot = u32::try_from(at / bytes).ok()?;
                        return Some((Store::State(id), moved(bytes, self.shadow.slots().get(&slot))?));
                    }
                    _ => {}
                }
            }
        }
        None
    }
}
