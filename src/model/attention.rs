//! The attention block: window, compressor, indexer and query branches, then one attention over what they made.

use super::weights::{AttentionWeights, IndexerWeights};
use crate::step::{Compact, CompressWeights, Lane, Output, Pool, Receiver, Rows, Sender, State, T, Weight};

/// Where this step's tokens store their rows.
#[derive(Debug)]
pub(super) struct Slots<'s> {
    /// i64 `[T, 1]`: window rows.
    pub(super) window: T<'s>,
    /// i64 `[T, 1]`: rows of ratio 4, also of index keys.
    pub(super) c4: T<'s>,
    /// i64 `[T, 1]`: rows of ratio 128.
    pub(super) c128: T<'s>,
    /// i32 `[R, 1]`.
    pub(super) state: T<'s>,
}

/// One layer's pools and states, opened for this step.
#[derive(Debug)]
pub(super) struct Cache<'s> {
    pub(super) window: Pool<'s>,
    pub(super) rows: Option<(Pool<'s>, State<'s>)>,
    /// Index keys, their state, and where the selected rows go.
    pub(super) index: Option<(Pool<'s>, State<'s>, Output<'s>)>,
}

/// Appends the block; `x` is the normed sublayer input.
pub(super) fn attention<'s>(
    lane: &mut Lane<'s>,
    x: &T<'s>,
    w: &AttentionWeights,
    slots: &Slots<'s>,
    cache: Cache<'s>,
) -> T<'s> {
    let Cache { window, rows, index } = cache;
    let settled = window.settled;
    let store = |a: &mut Lane<'s>| {
        let kv = a.linear(x, &w.wkv);
        a.rope_store(&kv, &w.kv_norm, &w.rope, &slots.window, window.tail)
    };
    let o = match (rows, index, &w.compressor, &w.indexer) {
        (Some((rows, state)), Some(index), Some(compressor), Some(indexer)) => {
            let (keys, keys_rx) = lane.channel();
            let (qr, qr_rx) = lane.channel();
            let (pool, index_state, selected) = index;
            let keep = (rows.settled, pool.settled);
            let (stored, compressed, q, selected) = lane
                .fork()
                .branch("window", store)
                .branch("compress", |b| {
                    let kvg = b.linear_f32(x, &indexer.projection);
                    let stored = b.index_store(
                        &kvg,
                        &indexer.compressor,
                        &slots.state,
                        &slots.c4,
                        index_state,
                        pool.tail,
                    );
                    b.send(keys, &stored);
                    compress(b, x, compressor, slots, &slots.c4, (rows.tail, state))
                })
                .branch("query", |c| query(c, x, w, Some(qr)))
                .branch("index", |d| select(d, x, w, indexer, (qr_rx, keys_rx), keep.1, selected))
                .join();
            let compact = Compact::Selected { settled: keep.0, stored: &compressed, selected: &selected };
            lane.attention(&q, (settled, &stored), compact, &w.sink, &w.rope)
        }
        (Some((rows, state)), _, Some(compressor), _) => {
            let kept = rows.settled;
            let (stored, compressed, q) = lane
                .fork()
                .branch("window", store)
                .branch("compress", |b| compress(b, x, compressor, slots, &slots.c128, (rows.tail, state)))
                .branch("query", |c| query(c, x, w, None))
                .join();
            let compact = Compact::All { settled: kept, stored: &compressed };
            lane.attention(&q, (settled, &stored), compact, &w.sink, &w.rope)
        }
        _ => {
            let (stored, q) =
                lane.fork().branch("window", store).branch("query", |c| query(c, x, w, None)).join();
            lane.attention(&q, (settled, &stored), Compact::None, &w.sink, &w.rope)
        }
    };
    let u = lane.linear_grouped(&o, &w.wo_a, w.groups);
    lane.linear(&u, &w.wo_b)
}

/// The query heads; hands the low-rank query on to the indexer.
fn query<'s>(lane: &mut Lane<'s>, x: &T<'s>, w: &AttentionWeights, to: Option<Sender<'s, T<'s>>>) -> T<'s> {
    let qr = lane.linear(x, &w.wq_a);
    let qr = lane.rmsnorm(&qr, &w.q_norm);
    if let Some(to) = to {
        lane.send(to, &qr);
    }
    let q = lane.linear(&qr, &w.wq_b);
    lane.query(&q, &w.rope, w.eps)
}

fn compress<'s>(
    lane: &mut Lane<'s>,
    x: &T<'s>,
    (projection, w): &(Weight, CompressWeights),
    slots: &Slots<'s>,
    row_slot: &T<'s>,
    (tail, state): (crate::step::Tail<'s>, State<'s>),
) -> Rows<'s> {
    let kvg = lane.linear_f32(x, projection);
    lane.compress(&kvg, w, &slots.state, row_slot, state, tail)
}

/// The indexer: scores every visible row and selects the best.
fn select<'s>(
    lane: &mut Lane<'s>,
    x: &T<'s>,
    w: &AttentionWeights,
    indexer: &IndexerWeights,
    (qr, keys): (Receiver<'s, T<'s>>, Receiver<'s, Rows<'s>>),
    settled: crate::step::Settled<'s>,
    selected: Output<'s>,
) -> T<'s> {
    let (heads, weights) = lane.fork_join(
        ("query", |e: &mut Lane<'s>| {
            let qr = e.recv(qr);
            let q = e.linear(&qr, &indexer.wq_b);
            e.index_query(&q, &w.rope)
        }),
        ("weights", |f: &mut Lane<'s>| f.linear_f32(x, &indexer.weights)),
    );
    let keys = lane.recv(keys);
    let logits = lane.index_logits(&heads, &weights, settled, &keys);
    lane.topk(&logits, selected)
}
