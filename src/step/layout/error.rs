//! What the layout check refuses.

/// Why a step must not run, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("{node}: reads {table} as rows of {found} pages, the step's table has rows of {expected}")]
    Stride { node: String, table: String, expected: usize, found: usize },
    #[error(
        "position[{row}]: expected {expected}, found {found} (positions of a request ascend by one, padding last)"
    )]
    Position { row: usize, expected: i32, found: i32 },
    #[error("position[{row}]: expected at most {limit}, found {found}")]
    TooLong { row: usize, limit: usize, found: i32 },
    #[error("{table}[{request}][{column}]: expected a page in 0..{pages}, found {found}")]
    PageRange { table: String, request: usize, column: usize, pages: usize, found: i32 },
    #[error("{table}[{request}][{column}]: the request reads this page, and it is the null page")]
    NullPage { table: String, request: usize, column: usize },
    #[error("{table}[{request}][{column}]: page {page} is not the request's to read")]
    NotReadable { table: String, request: usize, column: usize, page: usize },
    #[error("{slots}[{row}]: expected {expected} for position {position}, found {found}")]
    Slot { slots: String, row: usize, position: i32, expected: i64, found: i64 },
    #[error("{slots}[{row}]: slot {slot} is written by row {other} too")]
    SlotTwice { slots: String, row: usize, other: usize, slot: i64 },
    #[error("{slots}[{row}]: page {page} is not the request's alone to write")]
    NotWritable { slots: String, row: usize, page: usize },
    #[error("{table}: page {page}, which request {request} writes, is also seen by request {other}")]
    PageShared { table: String, page: usize, request: usize, other: usize },
    #[error("{slots}[{request}]: expected a slot in 0..{limit} for a request with tokens, found {found}")]
    StateRange { slots: String, request: usize, limit: usize, found: i32 },
    #[error("{slots}[{request}]: slot {slot} is request {other}'s too")]
    StateTwice { slots: String, request: usize, other: usize, slot: i32 },
    #[error("{rows}[{sample}]: expected -1 or a row with a token of request {request}, found {found}")]
    SampleRow { rows: String, sample: usize, request: usize, found: i32 },
    #[error("{positions}[{sample}]: expected {expected}, found {found}")]
    SamplePosition { positions: String, sample: usize, request: usize, expected: i32, found: i32 },
}

impl LayoutError {
    /// The request at fault, of a step with `per_request` rows for each; `None` if it is the step itself.
    #[must_use]
    pub fn request(&self, per_request: usize) -> Option<usize> {
        match *self {
            Self::Stride { .. } => None,
            Self::Position { row, .. }
            | Self::TooLong { row, .. }
            | Self::Slot { row, .. }
            | Self::SlotTwice { row, .. }
            | Self::NotWritable { row, .. } => row.checked_div(per_request),
            Self::PageRange { request, .. }
            | Self::NullPage { request, .. }
            | Self::NotReadable { request, .. }
            | Self::PageShared { request, .. }
            | Self::StateRange { request, .. }
            | Self::StateTwice { request, .. }
            | Self::SampleRow { request, .. }
            | Self::SamplePosition { request, .. } => Some(request),
        }
    }
}
