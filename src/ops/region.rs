//! Buffers, values and regions: how an operation names memory.

use std::ops::Range;

/// A buffer of one step. Pools, states and weights outlive steps; `step::Buffer` says which of them this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Element types of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    U8,
    Bf16,
    F32,
    I32,
    I64,
    U64,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }
}

/// A dense, row-major array that fills a buffer. Its shape is the business of the operation that holds it.
///
/// A weight's value has dtype `U8` and the length of its stored bytes: executors know a weight's format by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    pub buffer: BufferId,
    pub dtype: Dtype,
    /// Number of elements.
    pub len: usize,
}

impl Value {
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    #[must_use]
    pub fn read(&self) -> Access {
        Access { region: self.region(), mode: Mode::Read }
    }

    #[must_use]
    pub fn write(&self) -> Access {
        Access { region: self.region(), mode: Mode::Write }
    }

    fn region(&self) -> Region {
        Region { buffer: self.buffer, part: Part::Bytes(0..self.bytes()) }
    }
}

/// Which part of a buffer. The rows of a pool or state fall in two parts that are disjoint in every run: sealing a step's
/// inputs checks that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Bytes(Range<usize>),
    /// Rows (or state slots) of tokens older than the step. Never written.
    Settled,
    /// Rows (or state slots) of this step's tokens.
    Tail,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    pub buffer: BufferId,
    pub part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Read,
    Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    pub region: Region,
    pub mode: Mode,
}

impl Access {
    pub(crate) fn settled(buffer: BufferId) -> Self {
        Self { region: Region { buffer, part: Part::Settled }, mode: Mode::Read }
    }

    pub(crate) fn tail(buffer: BufferId, mode: Mode) -> Self {
        Self { region: Region { buffer, part: Part::Tail }, mode }
    }
}

/// The rows of a step and where they stand in their sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// R: requests (rows of every page table).
    pub requests: usize,
    /// P: token rows of each request.
    pub per_request: usize,
    /// i32 `[T]`: absolute position of each row, -1 for padding. Within a request positions ascend by one.
    pub position: Value,
}

impl Tokens {
    /// T.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.requests * self.per_request
    }
}

/// The newest token of each request, on the device from the step that samples it to the step that embeds it: the host need
/// not have read one step to launch the next. A request has two cells, and the token at position `p` is in cell `p % 2`, so
/// that no step writes what it reads and a step that runs again gives the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry {
    /// State, i32 `[slots, 2]`.
    pub state: BufferId,
    pub slots: usize,
    /// i32 `[R]`: the state slot of each request.
    pub slot: Value,
}

impl Carry {
    /// Cells of a request.
    pub const CELLS: usize = 2;

    /// The element of the state that holds the token at `position`; `None` for a slot outside `0..slots`.
    #[must_use]
    pub fn cell(&self, slot: i32, position: usize) -> Option<usize> {
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < self.slots)?;
        Some(slot * Self::CELLS + position % Self::CELLS)
    }
}

/// A pool read through a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paged {
    pub pool: BufferId,
    /// i32 `[R, width]`: page id by page number. 0 is the null page; ids outside `0..pages` are masked.
    pub table: Value,
    pub width: usize,
    /// Rows of one page.
    pub page_rows: usize,
    /// Pages of the pool, the bound of every id.
    pub pages: usize,
}

impl Paged {
    /// Rows that the table can address per request.
    #[must_use]
    pub const fn max_rows(&self) -> usize {
        self.width * self.page_rows
    }

    /// Reads of the pool (both parts) and of the table.
    #[must_use]
    pub fn reads(&self) -> Vec<Access> {
        vec![Access::settled(self.pool), Access::tail(self.pool, Mode::Read), self.table.read()]
    }
}
