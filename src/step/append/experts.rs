//! Appends routing and the routed experts.

use std::panic::Location;

use crate::ops::{Dtype, ExpertsDown, ExpertsUp, Op, Router, Routing};
use crate::step::append::result_of;
use crate::step::handles::{Output, T, Weight};
use crate::step::lane::Lane;

/// Chosen experts and their weights, `[T, k]` each.
#[derive(Debug)]
pub struct Routed<'s> {
    pub ids: T<'s>,
    weights: T<'s>,
    k: usize,
    experts: usize,
}

/// Where scored or hashed routing gets its choice from.
#[derive(Clone, Copy, Debug)]
pub enum RouteBy<'a, 's> {
    Score { bias: &'a Weight },
    Hash { table: &'a Weight, token: &'a T<'s> },
}

impl<'s> Lane<'s> {
    /// Chooses experts; the ids are an output that later operations read.
    #[track_caller]
    #[must_use]
    pub fn router(
        &mut self,
        logits: &T<'s>,
        by: RouteBy<'_, 's>,
        ids: Output<'s>,
        factor: f32,
    ) -> Routed<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (rows, k, experts) = (tokens.rows(), ids.cols, logits.cols);
        inner.same(at, "router: rows of the ids", rows, ids.rows);
        let weights = inner.transient("router.weights", Dtype::F32, rows, k);
        let routing = match by {
            RouteBy::Score { bias } => {
                inner.same(at, "router: biases", experts, bias.cols);
                Routing::Scored { bias: inner.weight(bias) }
            }
            RouteBy::Hash { table, token } => {
                inner.same(at, "router: columns of the hash table", k, table.cols);
                Routing::Hash { table: inner.weight(table), token: token.value, vocab: table.rows }
            }
        };
        drop(inner);
        let op =
            Router { tokens, logits: logits.value, routing, ids: ids.value, weights, experts, k, factor };
        self.append(Op::Router(op));
        Routed { ids: T::new(ids.value, rows, k), weights: T::new(weights, rows, k), k, experts }
    }

    /// Gate and up of the chosen experts; `weight` stacks `[w1; w3]` of every expert.
    #[track_caller]
    #[must_use]
    pub fn experts_up(&mut self, x: &T<'s>, routed: &Routed<'s>, weight: &Weight, limit: f32) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, &format!("{}: columns", weight.name), x.cols, weight.cols);
        let width = weight.rows / (2 * routed.experts);
        inner.same(at, &format!("{}: rows", weight.name), 2 * width * routed.experts, weight.rows);
        let activation = inner.numerics.activation;
        let h = inner.transient(&result_of(weight), activation, x.rows, routed.k * width);
        let op = ExpertsUp {
            tokens,
            x: x.value,
            ids: routed.ids.value,
            weights: routed.weights.value,
            weight: inner.weight(weight),
            h,
            experts: routed.experts,
            k: routed.k,
            hidden: x.cols,
            width,
            limit,
        };
        drop(inner);
        self.append(Op::ExpertsUp(op));
        T::new(h, x.rows, routed.k * width)
    }

    /// Down projection of the chosen experts, summed in ascending id, the shared expert last.
    #[track_caller]
    #[must_use]
    pub fn experts_down(&mut self, h: &T<'s>, routed: &Routed<'s>, weight: &Weight, shared: &T<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (hidden, width) = (shared.cols, weight.cols);
        inner.same(at, &format!("{}: rows", weight.name), routed.experts * hidden, weight.rows);
        inner.same(at, &format!("{}: columns", weight.name), h.cols, routed.k * width);
        let activation = inner.numerics.activation;
        let y = inner.transient(&result_of(weight), activation, h.rows, hidden);
        let op = ExpertsDown {
            tokens,
            h: h.value,
            ids: routed.ids.value,
            weight: inner.weight(weight),
            shared: shared.value,
            y,
            experts: routed.experts,
            k: routed.k,
            hidden,
            width,
        };
        drop(inner);
        self.append(Op::ExpertsDown(op));
        T::new(y, h.rows, hidden)
    }
}
