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
/// `Head` and the working space of the kernels, of those of sm_90a where a block may have so much; the scores follow.
const LARGE: (usize, usize) = (227 << 10, 17_152 + 107_520);
const SMALL: usize = 17_152 + 66_048;

/// Bytes of shared memory before the scores, and the scores that a block then has room for.
fn room(shared: usize) -> (usize, usize) {
    let base = if shared >= LARGE.0 { LARGE.1 } else { SMALL };
    (base, (shared.saturating_sub(base) / 4).min(MAX_SEGMENT) / TILE * TILE)
}

/// Scores of a block of `cluster`.
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
    let (width, (base, most)) = (op.keys.max_rows(), room(b.all.shared_memory));
    b.at_most("rows that a token may see", width, CLUSTERS[0].0 * most)?;
    let params = IndexSelectParams {
        scores: scores(&op.scores(), b)?,
        selected: b.value_mut("selected", &op.selected, Dtype::I32, rows * op.k)?,
        k: b.dim("k", op.k)?,
        pad: 0,
    };
    let (cluster, kernel) = match reader {
        IndexReader::Fast if op.keys.page_rows == TILE => kernel(rows, width, b.all.multiprocessors, most),
        _ => (CLUSTERS[0].0, Kernel::IndexSelectSimple),
    };
    let shared = base + 4 * segment(width, cluster);
    Ok(Launch::new(kernel, [cluster * rows, 1, 1], THREADS, shared, &params))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_blocks_as_the_device_holds() {
        let (base, most) = room(227 << 10);
        assert!(base + 4 * most <= 227 << 10);
        let clusters = |rows, width| kernel(rows, width, 132, most).0;
        assert_eq!([1, 16, 17, 33, 34, 64, 200].map(|rows| clusters(rows, 32768)), [8, 8, 4, 4, 2, 2, 2]);
        // Where a half of a row has no room, more blocks than are held at a time.
        assert_eq!(clusters(64, 2 * most + 1), 4);
        assert_eq!(clusters(64, 4 * most + 1), 8);
        assert!(room(99 << 10).1 >= 4096, "a token of 32,768 rows");
    }
}
