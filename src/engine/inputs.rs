//! Fills the inputs of a step from the requests in it. Nothing of the step but these bytes depends on a request.

use crate::cache::{Caches, Sequence};
use crate::instrument::Stored;
use crate::model::{ModelStep, StepIo};
use crate::ops::{BufferId, Embed, Value};
use crate::step::{HostIo, Owners};

use super::api::SamplingParams;

/// The tokens of a request in a step.
#[derive(Clone, Copy, Debug)]
pub enum Tokens<'a> {
    Given(&'a [u32]),
    /// One, which the request's last step sampled and the device holds.
    Carried,
}

impl Tokens<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Given(all) => all.len(),
            Self::Carried => 1,
        }
    }
}

/// One request's part of a step: its tokens from `start` on, and whether its last token is sampled from.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub sequence: &'a Sequence,
    pub start: usize,
    pub tokens: Tokens<'a>,
    pub sample: Option<&'a SamplingParams>,
}

impl Segment<'_> {
    /// Its rows, as the canary counts them.
    pub(super) fn stored(&self) -> Stored {
        Stored { sequence: self.sequence.clone(), start: self.start, tokens: self.tokens.len() }
    }
}

/// Writes every input: segment `r` is request row `r`; rows beyond the segments are padding.
pub fn fill(step: &ModelStep, memory: &mut HostIo, segments: &[Segment<'_>]) {
    clear(step, memory);
    for (r, segment) in segments.iter().enumerate() {
        tokens(step, memory, r, segment);
        tables(step, memory, r, segment.sequence);
        if let Some(params) = segment.sample {
            sampling(step, memory, r, segment, params);
        }
    }
}

/// Which pages the requests of a step hold, as the cache knows it.
#[derive(Debug)]
pub struct Held<'a> {
    pub caches: &'a Caches,
    pub io: &'a StepIo,
    pub segments: &'a [Segment<'a>],
}

impl Owners for Held<'_> {
    fn reads(&self, table: BufferId, request: usize, column: usize, page: usize) -> bool {
        let Some(sequence) = self.segments.get(request).map(|s| s.sequence) else { return false };
        let (pages, handle) = if table == self.io.window_table.buffer {
            (&self.caches.windows, sequence.window(column))
        } else {
            (&self.caches.blocks, sequence.blocks.get(column).copied())
        };
        handle.is_some_and(|held| held.id as usize == page && pages.check(sequence.owner, held).is_ok())
    }

    /// Nothing is shared yet: whoever may read a page may write it.
    fn writes(&self, table: BufferId, request: usize, column: usize, page: usize) -> bool {
        self.reads(table, request, column, page)
    }
}

/// Everything as padding: no position, no slot, the null page, no sample.
fn clear(step: &ModelStep, memory: &mut HostIo) {
    let io = &step.io;
    for value in [&io.position, &io.state_slot, &io.sample_rows, &io.sample_position] {
        memory.host_mut::<i32>(value).fill(-1);
    }
    for value in [&io.window_slot, &io.c4_slot, &io.c128_slot] {
        memory.host_mut::<i64>(value).fill(-1);
    }
    for value in [&io.token, &io.window_table, &io.block_table, &io.top_k] {
        memory.host_mut::<i32>(value).fill(0);
    }
    for value in [&io.temperature, &io.min_p] {
        memory.host_mut::<f32>(value).fill(0.0);
    }
    memory.host_mut::<f32>(&io.top_p).fill(1.0);
    memory.host_mut::<u64>(&io.seed).fill(0);
}

fn tokens(step: &ModelStep, memory: &mut HostIo, r: usize, segment: &Segment<'_>) {
    let io = &step.io;
    for i in 0..segment.tokens.len() {
        let (row, position) = (r * step.shape.per_request + i, segment.start + i);
        memory.host_mut(&io.token)[row] = match segment.tokens {
            Tokens::Given(all) => signed(all[i] as usize),
            Tokens::Carried => Embed::CARRIED,
        };
        memory.host_mut(&io.position)[row] = signed(position);
        let slots = [
            (&io.window_slot, segment.sequence.window_slot(position)),
            (&io.c4_slot, segment.sequence.row_slot(position, 4)),
            (&io.c128_slot, segment.sequence.row_slot(position, 128)),
        ];
        for (value, slot) in slots {
            memory.host_mut::<i64>(value)[row] = slot.unwrap_or(-1);
        }
    }
    memory.host_mut(&io.state_slot)[r] = signed(segment.sequence.slot.id as usize);
}

fn tables(step: &ModelStep, memory: &mut HostIo, r: usize, sequence: &Sequence) {
    let io = &step.io;
    let mut table = |value: &Value, width: usize, pages: &mut dyn Iterator<Item = (usize, u32)>| {
        let row = &mut memory.host_mut::<i32>(value)[r * width..][..width];
        for (number, id) in pages {
            row[number] = signed(id as usize);
        }
    };
    let windows = sequence.windows.iter().map(|(number, page)| (*number, page.id));
    table(&io.window_table, io.window_width, &mut windows.into_iter());
    let blocks = sequence.blocks.iter().map(|page| page.id).enumerate();
    table(&io.block_table, io.block_width, &mut blocks.into_iter());
}

fn sampling(step: &ModelStep, memory: &mut HostIo, r: usize, segment: &Segment<'_>, params: &SamplingParams) {
    let io = &step.io;
    let Some(last) = segment.tokens.len().checked_sub(1) else { return };
    memory.host_mut(&io.sample_rows)[r] = signed(r * step.shape.per_request + last);
    memory.host_mut(&io.sample_position)[r] = signed(segment.start + last + 1);
    memory.host_mut(&io.temperature)[r] = params.temperature;
    memory.host_mut(&io.top_p)[r] = params.top_p;
    memory.host_mut(&io.min_p)[r] = params.min_p;
    memory.host_mut(&io.top_k)[r] = i32::try_from(params.top_k).unwrap_or(i32::MAX);
    memory.host_mut(&io.seed)[r] = params.seed;
}

/// Positions, tokens and pages are far below 2^31: the engine checks the context length and the pools at start.
fn signed(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
