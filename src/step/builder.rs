//! Lanes: how a model appends operations to a step.
//!
//! A lane is a sequence of launches. A second one comes only from [`Lane::fork`], whose branches wait for the parent and
//! whose join the parent waits for, and a value crosses between branches only through [`Lane::channel`], which adds the
//! edge. Nothing is written through `&mut`: operations read handles by `&` and return new ones, a store consumes the
//! [`Tail`] that it writes and returns readable [`Rows`]. Handles carry an invariant brand `'s`, so none survives its step or
//! enters another; those that name readable values are not `Send`, and branches are, so a value cannot be smuggled to a
//! sibling around its edge.
//!
//! Operations return values, not results: the first fault sticks, with the line of model code that caused it, and
//! [`build`] returns it instead of a graph.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::MutexGuard;

use super::graph::{Buffer, Class, Graph, Lane as LaneInfo, NodeId, PoolId, StateId, WeightId};
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

/// Ties a handle to one step: invariant in `'s`.
pub(super) type Brand<'s> = PhantomData<fn(&'s ()) -> &'s ()>;

/// Keeps a handle from being sent out of the branch that made it.
#[derive(Debug, Default)]
struct StaysInItsBranch(PhantomData<MutexGuard<'static, ()>>);

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

/// A value of the step: `rows x cols` elements. Written once, by the operation that returned it.
#[derive(Debug)]
pub struct T<'s> {
    pub(super) value: Value,
    pub(super) rows: usize,
    pub(super) cols: usize,
    _brand: Brand<'s>,
    _stays: StaysInItsBranch,
}

impl T<'_> {
    pub(super) fn new(value: Value, rows: usize, cols: usize) -> Self {
        Self { value, rows, cols, _brand: PhantomData, _stays: StaysInItsBranch::default() }
    }

    /// Where the value lives, for whoever runs the step.
    #[must_use]
    pub fn value(&self) -> Value {
        self.value
    }
}

/// A frozen weight, known by id across steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    pub id: WeightId,
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    /// Stored bytes.
    pub bytes: usize,
}

/// A paged pool, known by id across steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    pub id: PoolId,
    pub name: String,
    pub pages: usize,
    pub page_rows: usize,
    pub page_bytes: usize,
}

/// Per-request state, known by id across steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    pub id: StateId,
    pub name: String,
    pub slots: usize,
    /// Elements of one slot, of four bytes each.
    pub len: usize,
}

/// Rows of a pool that are older than the step: readable anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Settled<'s> {
    pub(super) paged: Paged,
    _brand: Brand<'s>,
}

/// A pool's unwritten slots of this step: consumed by the one operation that writes them.
#[derive(Debug)]
pub struct Tail<'s> {
    pub(super) paged: Paged,
    _brand: Brand<'s>,
}

/// The rows of a pool that this step stored.
#[derive(Debug)]
pub struct Rows<'s> {
    pub(super) pool: BufferId,
    _brand: Brand<'s>,
    _stays: StaysInItsBranch,
}

impl<'s> Rows<'s> {
    pub(super) fn of(tail: Tail<'s>) -> Self {
        Self::at(tail.paged.pool)
    }

    fn at(pool: BufferId) -> Self {
        Self { pool, _brand: PhantomData, _stays: StaysInItsBranch::default() }
    }
}

#[derive(Debug)]
pub struct Pool<'s> {
    pub settled: Settled<'s>,
    pub tail: Tail<'s>,
}

/// Per-request state: read at older tokens' slots and written at this step's by the one operation that consumes it.
#[derive(Debug)]
pub struct State<'s> {
    pub(super) buffer: BufferId,
    pub(super) slots: usize,
    pub(super) len: usize,
    _brand: Brand<'s>,
}

/// The newest token of each request as the steps before left it: readable anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Carried<'s> {
    pub(super) carry: ops::Carry,
    _brand: Brand<'s>,
}

/// The carry's cells for this step's tokens: consumed by the one operation that samples them.
#[derive(Debug)]
pub struct CarryTail<'s> {
    pub(super) carry: ops::Carry,
    _brand: Brand<'s>,
}

/// The tokens that a step hands to the next on the device.
#[derive(Debug)]
pub struct Carry<'s> {
    pub settled: Carried<'s>,
    pub tail: CarryTail<'s>,
}

/// Memory that the host reads after the step: consumed by the operation that writes it.
#[derive(Debug)]
pub struct Output<'s> {
    pub(super) value: Value,
    pub(super) rows: usize,
    pub(super) cols: usize,
    _brand: Brand<'s>,
}

impl Output<'_> {
    /// Where the value lives, for whoever runs the step.
    #[must_use]
    pub fn value(&self) -> Value {
        self.value
    }
}

/// What a channel carries, without its lifetime.
#[derive(Clone, Copy, Debug)]
pub enum Parcel {
    T(Value, usize, usize),
    Rows(BufferId),
}

/// Handles that a channel can carry: those that name something readable. Sealed.
pub trait Handle<'s>: Sized {
    #[doc(hidden)]
    fn pack(&self) -> Parcel;
    #[doc(hidden)]
    fn unpack(parcel: Parcel) -> Self;
    /// Stands in after a fault; never runs.
    #[doc(hidden)]
    fn dummy() -> Self;
}

impl<'s> Handle<'s> for T<'s> {
    fn pack(&self) -> Parcel {
        Parcel::T(self.value, self.rows, self.cols)
    }

    fn unpack(parcel: Parcel) -> Self {
        match parcel {
            Parcel::T(value, rows, cols) => Self::new(value, rows, cols),
            Parcel::Rows(_) => Self::dummy(),
        }
    }

    fn dummy() -> Self {
        Self::new(Value { buffer: NOWHERE, dtype: Dtype::U8, len: 0 }, 0, 0)
    }
}

impl<'s> Handle<'s> for Rows<'s> {
    fn pack(&self) -> Parcel {
        Parcel::Rows(self.pool)
    }

    fn unpack(parcel: Parcel) -> Self {
        match parcel {
            Parcel::Rows(pool) => Self::at(pool),
            Parcel::T(..) => Self::dummy(),
        }
    }

    fn dummy() -> Self {
        Self::at(NOWHERE)
    }
}

/// The buffer of values that exist only because of a fault; such a step is never returned.
const NOWHERE: BufferId = BufferId(u32::MAX);

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
