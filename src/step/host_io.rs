//! A step's inputs and outputs in host memory: all inputs in one block and all outputs in another, in the order in which the
//! step opened them, so that a device needs one copy each way.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;

use super::graph::{Class, Graph};
use super::memory::Bytes;
use super::plan::ALIGN;
use crate::ops::{BufferId, Value};

/// Where an input or output lies: the bytes of its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Input(Range<usize>),
    Output(Range<usize>),
}

/// The host's side of a step. Buffers start at multiples of [`ALIGN`] in their block.
#[derive(Clone, Debug, Default)]
pub struct HostIo {
    /// By buffer; `None` for classes that live elsewhere.
    places: Arc<[Option<Place>]>,
    inputs: Bytes,
    outputs: Bytes,
}

impl HostIo {
    /// Zeroed memory for the inputs and outputs of `graph`.
    #[must_use]
    pub fn new(graph: &Graph) -> Self {
        let (mut inputs, mut outputs) = (0, 0);
        let take = |end: &mut usize, bytes: usize| {
            let start = *end;
            *end += bytes.next_multiple_of(ALIGN);
            start..start + bytes
        };
        let places = graph.buffers.iter().map(|b| match b.class {
            Class::Input => Some(Place::Input(take(&mut inputs, b.bytes))),
            Class::Output => Some(Place::Output(take(&mut outputs, b.bytes))),
            _ => None,
        });
        let places = places.collect();
        Self { places, inputs: Bytes::zeroed(inputs), outputs: Bytes::zeroed(outputs) }
    }

    /// Where a buffer lies; `None` for one that is neither input nor output.
    #[must_use]
    pub fn place(&self, buffer: BufferId) -> Option<&Place> {
        self.places.get(buffer.0 as usize)?.as_ref()
    }

    /// The bytes of the outputs' block from the start of `first` to the end of `last`; none if either is no output.
    #[must_use]
    pub fn span(&self, first: &Value, last: &Value) -> Range<usize> {
        match (self.place(first.buffer), self.place(last.buffer)) {
            (Some(Place::Output(first)), Some(Place::Output(last))) => first.start..last.end,
            _ => 0..0,
        }
    }

    /// The block of all inputs.
    #[must_use]
    pub fn inputs(&self) -> &[u8] {
        &self.inputs
    }

    /// The block of all inputs, to write.
    pub fn inputs_mut(&mut self) -> &mut [u8] {
        &mut self.inputs
    }

    /// The block of all outputs.
    #[must_use]
    pub fn outputs(&self) -> &[u8] {
        &self.outputs
    }

    /// The block of all outputs, to write.
    pub fn outputs_mut(&mut self) -> &mut [u8] {
        &mut self.outputs
    }

    /// Both blocks, to write.
    pub(super) fn blocks(&mut self) -> (&mut [u8], &mut [u8]) {
        (&mut self.inputs, &mut self.outputs)
    }

    /// An input's or output's bytes; none for buffers that live elsewhere.
    #[must_use]
    pub fn host_bytes(&self, buffer: BufferId) -> &[u8] {
        match self.place(buffer) {
            Some(Place::Input(range)) => &self.inputs[range.clone()],
            Some(Place::Output(range)) => &self.outputs[range.clone()],
            None => &[],
        }
    }

    /// The same, to write.
    pub fn host_bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        match self.places.get(buffer.0 as usize).and_then(Option::as_ref) {
            Some(Place::Input(range)) => &mut self.inputs[range.clone()],
            Some(Place::Output(range)) => &mut self.outputs[range.clone()],
            None => &mut [],
        }
    }

    /// An input or output as elements.
    #[must_use]
    pub fn host<E: Pod>(&self, value: &Value) -> &[E] {
        bytemuck::cast_slice(self.host_bytes(value.buffer))
    }

    /// An input or output as elements, to write.
    pub fn host_mut<E: Pod>(&mut self, value: &Value) -> &mut [E] {
        bytemuck::cast_slice_mut(self.host_bytes_mut(value.buffer))
    }
}
