//! The mixture of experts: routed experts beside the shared one.

use super::weights::{MoeWeights, Routing};
use crate::step::{Lane, Output, RouteBy, T};

/// Appends the block; `x` is the normed sublayer input, `ids` takes the chosen experts.
pub(super) fn moe<'s>(
    lane: &mut Lane<'s>,
    x: &T<'s>,
    token: &T<'s>,
    w: &MoeWeights,
    ids: Output<'s>,
) -> T<'s> {
    let (shared, (routed, h)) = lane.fork_join(
        ("shared", |a: &mut Lane<'s>| {
            let h = a.swiglu(x, &w.shared_up, w.limit);
            a.linear(&h, &w.shared_down)
        }),
        ("routed", |b: &mut Lane<'s>| {
            let logits = b.linear_f32(x, &w.gate);
            let by = match &w.routing {
                Routing::Scored { bias } => RouteBy::Score { bias },
                Routing::Hash { table } => RouteBy::Hash { table, token },
            };
            let routed = b.router(&logits, by, ids, w.factor);
            let h = b.experts_up(x, &routed, &w.up, w.limit);
            (routed, h)
        }),
    );
    lane.experts_down(&h, &routed, &w.down, &shared)
}
