//! Launch of `index_select`, by either reader.

use super::IndexReader;
use super::index_logits::{TILE, scores};
use crate::cuda::bindings::Bound;
use crate::cuda::ffi::IndexSelectParams;
use crate::cuda::launch::Params;
use crate::cuda::{CudaError, Kernel, Launch};
use crate::ops::{Dtype, IndexSelect};

const THREADS: u32 = 512;
/// Scores that the threads of a block hold.
const MAX_SEGMENT: usize = 64 * THREADS as usize;
/// Blocks of a token, fewest last.
const CLUSTERS: [(usize, Kernel); 3] =
    [(8, Kernel::IndexSelectFast8), (4, Kernel::IndexSelectFast4), (2, Kernel::IndexSelectFast2)];
/// Shared memory of a block for which the kernels of sm_90a are made; the others make do with less.
const LARGE: usize = 227 << 10;

/// A block's shared memory.
struct Room {
    /// Bytes of `Head` and of the working space of the kernels; the scores follow.
    base: usize,
    /// Scores that then have room.
    most: usize,
    /// Rows among which one block chooses alone.
    alone: usize,
}

impl Room {
    fn of(shared: usize) -> Self {
        let (work, alone) = if shared >= LARGE { (107_520, 8192) } else { (66_048, 4096) };
        let base = 17_152 + work;
        Self { base, most: (shared.saturating_sub(base) / 4).min(MAX_SEGMENT) / TILE * TILE, alone }
    }

    fn bytes(&self, width: usize, cluster: usize) -> usize {
        self.base + 4 * segment(width, cluster).max(self.alone.min(segment(width, 1)))
    }
}

/// Rows of a block of `cluster`.
fn segment(width: usize, cluster: usize) -> usize {
    width.div_ceil(cluster).next_multiple_of(TILE)
}

/// The kernel, and its blocks of a token: as many as a device holds for all tokens, or the fewest that have room.
fn kernel(rows: usize, width: usize, multiprocessors: usize, most: usize) -> (usize, Kernel) {
    let [first, rest @ ..] = CLUSTERS;
    let mut best = first;
    for (cluster, kernel) in rest {
        if best.0 * rows > multiprocessors && segment(width, cluster) <= most {
            best = (cluster, kernel);
        }
    }
    best
}

// SAFETY: generated from the kernels' header; gaps are explicit.
unsafe impl Params for IndexSelectParams {}

pub(super) fn launch(op: &IndexSelect, b: &Bound<'_>, reader: IndexReader) -> Result<Launch, CudaError> {
    let rows = op.tokens.rows();
    let (width, room) = (op.keys.max_rows(), Room::of(b.all.shared_memory));
    b.at_most("rows that a token may see", width, CLUSTERS[0].0 * room.most)?;
    let params = IndexSelectParams {
        scores: scores(&op.scores(), b)?,
        selected: b.value_mut("selected", &op.selected, Dtype::I32, rows * op.k)?,
        k: b.dim("k", op.k)?,
        pad: 0,
    };
    let (cluster, kernel) = match reader {
        IndexReader::Fast if op.keys.page_rows == TILE => {
            kernel(rows, width, b.all.multiprocessors, room.most)
        }
        _ => (CLUSTERS[0].0, Kernel::IndexSelectSimple),
    };
    Ok(Launch::new(kernel, [cluster * rows, 1, 1], THREADS, room.bytes(width, cluster), &params))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_blocks_as_the_device_holds() {
        let most = Room::of(LARGE).most;
        let clusters = |rows, width| kernel(rows, width, 132, most).0;
        assert_eq!([1, 16, 17, 33, 34, 64, 200].map(|rows| clusters(rows, 32768)), [8, 8, 4, 4, 2, 2, 2]);
        // Where a half of a row has no room, more blocks than are held at a time.
        assert_eq!(clusters(64, 2 * most + 1), 4);
        assert_eq!(clusters(64, 4 * most + 1), 8);
        for shared in [99 << 10, LARGE] {
            let room = Room::of(shared);
            assert!(room.most >= 4096, "a token of 32,768 rows");
            assert!([1, 2, 4, 8].iter().all(|c| room.bytes(c * room.most, *c) <= shared));
        }
    }
}
