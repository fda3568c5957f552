//! Lanes: how a model appends operations to a step.
//!
//! A lane is a sequence of launches. A second one comes only from [`Lane::fork`], whose branches wait for the parent and
//! whose join the parent waits for, and a value crosses between branches only through [`Lane::channel`], which adds the
//! edge. Nothing is written through `&mut`: operations read handles by `&` and return new ones, a store consumes the
//! [`Tail`] that it writes and returns readable [`Rows`](super::Rows). Handles carry an invariant brand `'s`, so none survives its step or
//! enters another; those that name readable values are not `Send`, and branches are, so a value cannot be smuggled to a
//! sibling around its edge.
//!
//! Operations return values, not results: the first fault sticks, with the line of model code that caused it, and
//! [`build`] returns it instead of a graph.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;

use super::graph::{Buffer, Class, Graph, Lane as LaneInfo, NodeId, WeightId};
use super::handles::{
    Brand, Carried, Carry, CarryTail, Output, Parcel, Pool, PoolSpec, Settled, State, StateSpec, T, Tail,
    Weight,
};
use super::lane::Lane;
use crate::format::index_row::IndexFormat;
use crate::format::kv_row::KvFormat;
use crate::ops::{self, BufferId, Dtype, Paged, Tokens, Value};

/// Why a step could not be built: the first fault, and where in the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct BuildError {
    pub message: String,
    pub at: String,
}

/// How numbers are held and rounded throughout a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// Activations: bf16, or f32 on the CPU.
    pub activation: Dtype,
    /// Round as the model was trained (FP8 key/value rows).
    pub trained: bool,
    pub kv: KvFormat,
    pub index: IndexFormat,
}

pub(super) struct Inner {
    pub(super) graph: Graph,
    pub(super) numerics: Numerics,
    pub(super) tokens: Option<Tokens>,
    weights: HashMap<WeightId, Value>,
    pub(super) scope: String,
    /// What was sent through each channel, with the sender's frontier.
    pub(super) parcels: Vec<Option<(Parcel, Vec<NodeId>)>>,
    fault: Option<BuildError>,
}

impl Inner {
    pub(super) fn fail(&mut self, at: &Location<'_>, message: String) {
        let at = format!("{}:{}", at.file(), at.line());
        self.fault.get_or_insert(BuildError { message, at });
    }

    fn buffer(
        &mut self,
        name: String,
        class: Class,
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: usize,
    ) -> BufferId {
        let id = BufferId(u32::try_from(self.graph.buffers.len()).unwrap_or(u32::MAX));
        self.graph.buffers.push(Buffer { name, class, dtype, shape, bytes });
        id
    }

    pub(super) fn value(
        &mut self,
        name: String,
        class: Class,
        dtype: Dtype,
        rows: usize,
        cols: usize,
    ) -> Value {
        let len = rows * cols;
        Value { buffer: self.buffer(name, class, dtype, vec![rows, cols], len * dtype.size()), dtype, len }
    }

    /// The buffer of a weight, opened at its first use.
    pub(super) fn weight(&mut self, weight: &Weight) -> Value {
        if let Some(&value) = self.weights.get(&weight.id) {
            return value;
        }
        let class = Class::Weight(weight.id);
        let shape = vec![weight.rows, weight.cols];
        let buffer = self.buffer(weight.name.clone(), class, Dtype::U8, shape, weight.bytes);
        let value = Value { buffer, dtype: Dtype::U8, len: weight.bytes };
        self.weights.insert(weight.id, value);
        value
    }

    fn named_once(&mut self, at: &Location<'_>, name: &str) {
        if self.graph.buffers.iter().any(|b| b.name == name) {
            self.fail(at, format!("{name} is opened twice in one step"));
        }
    }
}

/// What a step opens: inputs, outputs, pools and states, each once.
#[derive(Clone, Copy)]
pub struct Root<'s> {
    inner: &'s RefCell<Inner>,
    _brand: Brand<'s>,
}

impl std::fmt::Debug for Root<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Root")
    }
}

impl<'s> Root<'s> {
    /// Sets the token rows of the step; `position` is i32 `[requests * per_request]`.
    #[track_caller]
    pub fn tokens(&self, requests: usize, per_request: usize, position: &T<'s>) {
        let tokens = Tokens { requests, per_request, position: position.value };
        let mut inner = self.inner.borrow_mut();
        if position.value.dtype != Dtype::I32 || position.value.len != tokens.rows() {
            let message = format!("positions: expected i32 [{}], found {:?}", tokens.rows(), position.value);
            inner.fail(Location::caller(), message);
        }
        inner.tokens = Some(tokens);
    }

    /// A value that the host writes before the step.
    #[track_caller]
    #[must_use]
    pub fn input(&self, name: &str, dtype: Dtype, rows: usize, cols: usize) -> T<'s> {
        let mut inner = self.inner.borrow_mut();
        inner.named_once(Location::caller(), name);
        let value = inner.value(name.to_owned(), Class::Input, dtype, rows, cols);
        T::new(value, rows, cols)
    }

    /// Memory that the host reads after the step.
    #[track_caller]
    #[must_use]
    pub fn output(&self, name: &str, dtype: Dtype, rows: usize, cols: usize) -> Output<'s> {
        let mut inner = self.inner.borrow_mut();
        inner.named_once(Location::caller(), name);
        let value = inner.value(name.to_owned(), Class::Output, dtype, rows, cols);
        Output { value, rows, cols, _brand: PhantomData }
    }

    /// Opens a pool through a page table, i32 `[requests, width]`.
    #[track_caller]
    #[must_use]
    pub fn pool(&self, spec: &PoolSpec, table: &T<'s>) -> Pool<'s> {
        let mut inner = self.inner.borrow_mut();
        inner.named_once(Location::caller(), &spec.name);
        let bytes = spec.pages * spec.page_bytes;
        let shape = vec![spec.pages, spec.page_bytes];
        let pool = inner.buffer(spec.name.clone(), Class::Pool(spec.id), Dtype::U8, shape, bytes);
        let (page_rows, pages) = (spec.page_rows, spec.pages);
        let paged = Paged { pool, table: table.value, width: table.cols, page_rows, pages };
        Pool { settled: Settled { paged, _brand: PhantomData }, tail: Tail { paged, _brand: PhantomData } }
    }

    /// Opens the carry, for requests with these state slots, i32 `[requests]`.
    #[track_caller]
    #[must_use]
    pub fn carry(&self, spec: &StateSpec, slot: &T<'s>) -> Carry<'s> {
        let mut inner = self.inner.borrow_mut();
        inner.named_once(Location::caller(), &spec.name);
        if spec.len != ops::Carry::CELLS {
            let message = format!("{}: expected {} cells, found {}", spec.name, ops::Carry::CELLS, spec.len);
            inner.fail(Location::caller(), message);
        }
        let (bytes, shape) = (spec.slots * spec.len * 4, vec![spec.slots, spec.len]);
        let state = inner.buffer(spec.name.clone(), Class::State(spec.id), Dtype::I32, shape, bytes);
        let carry = ops::Carry { state, slots: spec.slots, slot: slot.value };
        let (settled, tail) =
            (Carried { carry, _brand: PhantomData }, CarryTail { carry, _brand: PhantomData });
        Carry { settled, tail }
    }

    #[track_caller]
    #[must_use]
    pub fn state(&self, spec: &StateSpec) -> State<'s> {
        let mut inner = self.inner.borrow_mut();
        inner.named_once(Location::caller(), &spec.name);
        let bytes = spec.slots * spec.len * 4;
        let shape = vec![spec.slots, spec.len];
        let buffer = inner.buffer(spec.name.clone(), Class::State(spec.id), Dtype::F32, shape, bytes);
        State { buffer, slots: spec.slots, len: spec.len, _brand: PhantomData }
    }
}

/// Builds one step. What `f` returns comes back beside the graph, for instance where the inputs are.
///
/// # Errors
/// The first fault of `f`, with its line.
pub fn build<R>(
    numerics: Numerics,
    f: impl for<'s> FnOnce(&mut Lane<'s>, Root<'s>) -> R,
) -> Result<(Graph, R), BuildError> {
    let mut graph = Graph::default();
    graph.lanes.push(LaneInfo { name: "main".to_owned(), parent: None });
    let inner = RefCell::new(Inner {
        graph,
        numerics,
        tokens: None,
        weights: HashMap::new(),
        scope: "top".to_owned(),
        parcels: Vec::new(),
        fault: None,
    });
    let result = f(&mut Lane::main(&inner), Root { inner: &inner, _brand: PhantomData });
    let mut inner = inner.into_inner();
    inner.graph.edges.sort_unstable();
    match inner.fault {
        Some(fault) => Err(fault),
        None => Ok((inner.graph, result)),
    }
}
