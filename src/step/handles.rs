//! What a step's operations read and return, branded with their step.

use std::marker::PhantomData;
use std::sync::MutexGuard;

use super::graph::{PoolId, StateId, WeightId};
use crate::ops::{self, BufferId, Dtype, Paged, Value};

/// Ties a handle to one step: invariant in `'s`.
pub(super) type Brand<'s> = PhantomData<fn(&'s ()) -> &'s ()>;

/// Keeps a handle from being sent out of the branch that made it.
#[derive(Debug, Default)]
struct StaysInItsBranch(PhantomData<MutexGuard<'static, ()>>);

/// A value of the step: `rows x cols` elements. Written once, by the operation that returned it.
#[derive(Debug)]
pub struct T<'s> {
    pub(super) value: Value,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) _brand: Brand<'s>,
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
    pub(super) _brand: Brand<'s>,
}

/// A pool's unwritten slots of this step: consumed by the one operation that writes them.
#[derive(Debug)]
pub struct Tail<'s> {
    pub(super) paged: Paged,
    pub(super) _brand: Brand<'s>,
}

/// The rows of a pool that this step stored.
#[derive(Debug)]
pub struct Rows<'s> {
    pub(super) pool: BufferId,
    pub(super) _brand: Brand<'s>,
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
    pub(super) _brand: Brand<'s>,
}

/// The newest token of each request as the steps before left it: readable anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Carried<'s> {
    pub(super) carry: ops::Carry,
    pub(super) _brand: Brand<'s>,
}

/// The carry's cells for this step's tokens: consumed by the one operation that samples them.
#[derive(Debug)]
pub struct CarryTail<'s> {
    pub(super) carry: ops::Carry,
    pub(super) _brand: Brand<'s>,
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
    pub(super) _brand: Brand<'s>,
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
