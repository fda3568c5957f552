//! Descriptions of the operations: arguments, shapes and the memory that each reads and writes. Nothing here runs.
//!
//! An operation is a plain struct of operands and dimensions. `T` is the number of token rows of a step, `T = R * P` with
//! `R` requests and `P` tokens of each (decode: `P = 1`; prefill: `R = 1`, `P = 256`, positions ascending, padding last);
//! row `t` belongs to request `t / P`. A padded row has position -1: no operation stores, scores or routes it, and what it
//! leaves in its row of an output is zero. Every index read from memory is clamped against a bound that is in the struct.
//!
//! `Op` is closed: the oracle (`reference`), the CPU path (`cpu`) and the GPU path (`cuda`) each match it exhaustively.

mod attention;
mod compress;
mod embed;
mod experts;
mod hyper;
mod index_logits;
mod index_query;
mod index_select;
mod index_store;
mod linear;
mod query;
mod region;
mod rmsnorm;
mod rope_store;
mod router;
mod sample;
mod topk;
mod touched;

pub use attention::{Attention, Compressed};
pub use compress::{C4_RING, Compress, Pooling, StateLayout, c4_state_slot, c128_state_slot};
pub use embed::Embed;
pub use experts::{ExpertsDown, ExpertsUp};
pub use hyper::{HyperHead, HyperPost, HyperPre, SINKHORN_DEFAULT};
pub use index_logits::IndexLogits;
pub use index_query::IndexQuery;
pub use index_select::IndexSelect;
pub use index_store::IndexStore;
pub use linear::{Epilogue, Linear};
pub use query::Query;
pub use region::{Access, BufferId, Carry, Dtype, Mode, Paged, Part, Region, Tokens, Value};
pub use rmsnorm::RmsNorm;
pub use rope_store::RopeStore;
pub use router::{Router, Routing};
pub use sample::{Sample, sample_uniform};
pub use topk::TopK;
pub use touched::{Contents, Rows, Touched, UnknownContents};

/// Head dimension of keys, values and queries.
pub const HEAD_DIM: usize = 512;
/// Rotated dimensions: the last ones of a head.
pub const ROPE_DIM: usize = 64;
/// Dimensions of an index key.
pub const INDEX_DIM: usize = 128;
/// A query sees this many of the newest tokens uncompressed, itself included.
pub const WINDOW: usize = 128;
/// Rows of a window page, and of a C4 or index page.
pub const PAGE_ROWS: usize = 64;
/// Tokens whose compressed rows share one page id: 64 C4 rows, 64 index rows, 2 C128 rows.
pub const BLOCK_TOKENS: usize = 256;

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Embed(Embed),
    HyperPre(HyperPre),
    HyperPost(HyperPost),
    HyperHead(HyperHead),
    RmsNorm(RmsNorm),
    Linear(Linear),
    Query(Query),
    RopeStore(RopeStore),
    Compress(Compress),
    IndexStore(IndexStore),
    IndexQuery(IndexQuery),
    IndexLogits(IndexLogits),
    TopK(TopK),
    IndexSelect(IndexSelect),
    Attention(Attention),
    Router(Router),
    ExpertsUp(ExpertsUp),
    ExpertsDown(ExpertsDown),
    Sample(Sample),
}

impl Op {
    /// The operation's name, as in the source tree.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::HyperPre(_) => "hyper_pre",
            Self::HyperPost(_) => "hyper_post",
            Self::HyperHead(_) => "hyper_head",
            Self::RmsNorm(_) => "rmsnorm",
            Self::Linear(_) => "linear",
            Self::Query(_) => "query",
            Self::RopeStore(_) => "rope_store",
            Self::Compress(_) => "compress",
            Self::IndexStore(_) => "index_store",
            Self::IndexQuery(_) => "index_query",
            Self::IndexLogits(_) => "index_logits",
            Self::TopK(_) => "topk",
            Self::IndexSelect(_) => "index_select",
            Self::Attention(_) => "attention",
            Self::Router(_) => "router",
            Self::ExpertsUp(_) => "experts_up",
            Self::ExpertsDown(_) => "experts_down",
            Self::Sample(_) => "sample",
        }
    }

    /// Every region that any run of this node may read or write, whatever the inputs hold: what the plan and the proof
    /// go by.
    #[must_use]
    pub fn regions(&self) -> Vec<Access> {
        match self {
            Self::Embed(op) => op.regions(),
            Self::HyperPre(op) => op.regions(),
            Self::HyperPost(op) => op.regions(),
            Self::HyperHead(op) => op.regions(),
            Self::RmsNorm(op) => op.regions(),
            Self::Linear(op) => op.regions(),
            Self::Query(op) => op.regions(),
            Self::RopeStore(op) => op.regions(),
            Self::Compress(op) => op.pooling.regions(),
            Self::IndexStore(op) => op.pooling.regions(),
            Self::IndexQuery(op) => op.regions(),
            Self::IndexLogits(op) => op.regions(),
            Self::TopK(op) => op.regions(),
            Self::IndexSelect(op) => op.regions(),
            Self::Attention(op) => op.regions(),
            Self::Router(op) => op.regions(),
            Self::ExpertsUp(op) => op.regions(),
            Self::ExpertsDown(op) => op.regions(),
            Self::Sample(op) => op.regions(),
        }
    }
}
