//! Appends what is dense: embedding, hyper-connections, norms, linears, logits and the sampler.

use std::panic::Location;

use crate::ops::{
    BufferId, Dtype, Embed, Epilogue, HyperHead, HyperPost, HyperPre, Linear, Op, RmsNorm, Sample, Value,
};
use crate::step::append::result_of;
use crate::step::append::{HyperWeights, NormWeights};
use crate::step::handles::{Carried, CarryTail, Output, T, Weight};
use crate::step::lane::Lane;

/// A sublayer's input and the way back from its output.
#[derive(Debug)]
pub struct Mixed<'s> {
    pub x: T<'s>,
    post: T<'s>,
    comb: T<'s>,
}

/// Per-sample parameters, inputs of the step.
#[derive(Debug)]
pub struct SampleParams<'s> {
    pub temperature: T<'s>,
    pub top_p: T<'s>,
    pub min_p: T<'s>,
    pub top_k: T<'s>,
    pub seed: T<'s>,
    pub position: T<'s>,
}

impl<'s> Lane<'s> {
    /// Embeds the tokens (i32 `[T, 1]`), given or carried, into `streams` equal residual streams; and their ids.
    #[track_caller]
    #[must_use]
    pub fn embed(
        &mut self,
        token: &T<'s>,
        carried: &Carried<'s>,
        weight: &Weight,
        streams: usize,
    ) -> (T<'s>, T<'s>) {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        inner.same(at, "embed: tokens", tokens.rows(), token.rows);
        inner.same(at, "embed: state slots", tokens.requests, carried.carry.slot.len);
        let (dtype, cols) = (inner.numerics.activation, streams * weight.cols);
        let out = inner.transient("embed", dtype, tokens.rows(), cols);
        let ids = inner.transient("embed.ids", Dtype::I32, tokens.rows(), 1);
        let (vocab, hidden) = (weight.rows, weight.cols);
        let weight = inner.weight(weight);
        drop(inner);
        let (token, carry) = (token.value, carried.carry);
        self.append(Op::Embed(Embed { tokens, token, carry, weight, out, ids, vocab, hidden, streams }));
        (T::new(out, tokens.rows(), cols), T::new(ids, tokens.rows(), 1))
    }

    #[track_caller]
    #[must_use]
    pub fn hyper_pre(&mut self, streams: &T<'s>, w: &HyperWeights, norm: &NormWeights) -> Mixed<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (rows, n) = (tokens.rows(), w.streams);
        let hidden = norm.gain.cols;
        inner.same(at, "hyper_pre: columns of the streams", n * hidden, streams.cols);
        inner.same(at, "hyper_pre: columns of the mix", n * hidden, w.mix.cols);
        inner.same(at, "hyper_pre: rows of the mix", (2 + n) * n, w.mix.rows);
        let activation = inner.numerics.activation;
        let out = inner.transient("hyper_pre", activation, rows, hidden);
        let post = inner.transient("hyper_pre.post", Dtype::F32, rows, n);
        let comb = inner.transient("hyper_pre.comb", Dtype::F32, rows, n * n);
        let op = HyperPre {
            tokens,
            streams: streams.value,
            mix: inner.weight(&w.mix),
            base: inner.weight(&w.base),
            scale: inner.weight(&w.scale),
            norm: inner.weight(&norm.gain),
            out,
            post,
            comb,
            n,
            hidden,
            sinkhorn_iters: w.sinkhorn_iters,
            eps: norm.eps,
            hc_eps: w.hc_eps,
        };
        drop(inner);
        self.append(Op::HyperPre(op));
        Mixed { x: T::new(out, rows, hidden), post: T::new(post, rows, n), comb: T::new(comb, rows, n * n) }
    }

    #[track_caller]
    #[must_use]
    pub fn hyper_post(&mut self, streams: &T<'s>, y: &T<'s>, mixed: &Mixed<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let (n, hidden) = (mixed.post.cols, y.cols);
        inner.same(at, "hyper_post: columns of the streams", n * hidden, streams.cols);
        let activation = inner.numerics.activation;
        let out = inner.transient("hyper_post", activation, tokens.rows(), streams.cols);
        drop(inner);
        self.append(Op::HyperPost(HyperPost {
            tokens,
            streams: streams.value,
            y: y.value,
            post: mixed.post.value,
            comb: mixed.comb.value,
            out,
            n,
            hidden,
        }));
        T::new(out, tokens.rows(), streams.cols)
    }

    /// Mixes the streams of the rows named by `rows` (i32 `[samples, 1]`) and norms them.
    #[track_caller]
    #[must_use]
    pub fn hyper_head(
        &mut self,
        streams: &T<'s>,
        rows: &T<'s>,
        w: &HyperWeights,
        norm: &NormWeights,
    ) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        let tokens = inner.tokens(at);
        let hidden = norm.gain.cols;
        inner.same(at, "hyper_head: columns of the streams", w.streams * hidden, streams.cols);
        let activation = inner.numerics.activation;
        let out = inner.transient("hyper_head", activation, rows.rows, hidden);
        let op = HyperHead {
            tokens,
            streams: streams.value,
            rows: rows.value,
            mix: inner.weight(&w.mix),
            base: inner.weight(&w.base),
            scale: inner.weight(&w.scale),
            norm: inner.weight(&norm.gain),
            out,
            samples: rows.rows,
            n: w.streams,
            hidden,
            eps: norm.eps,
            hc_eps: w.hc_eps,
        };
        drop(inner);
        self.append(Op::HyperHead(op));
        T::new(out, rows.rows, hidden)
    }

    #[track_caller]
    #[must_use]
    pub fn rmsnorm(&mut self, x: &T<'s>, norm: &NormWeights) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        inner.same(at, "rmsnorm: columns", norm.gain.cols, x.cols);
        let activation = inner.numerics.activation;
        let out = inner.transient(&result_of(&norm.gain), activation, x.rows, x.cols);
        let weight = inner.weight(&norm.gain);
        let (rows, width) = (x.rows, x.cols);
        drop(inner);
        self.append(Op::RmsNorm(RmsNorm { x: x.value, weight, out, rows, width, eps: norm.eps }));
        T::new(out, rows, width)
    }

    #[track_caller]
    #[must_use]
    pub fn linear(&mut self, x: &T<'s>, weight: &Weight) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, 1, Epilogue::None, None)
    }

    /// As `linear`, with f32 output.
    #[track_caller]
    #[must_use]
    pub fn linear_f32(&mut self, x: &T<'s>, weight: &Weight) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, 1, Epilogue::None, Some(Dtype::F32))
    }

    /// Block-diagonal: group `g` of the columns meets group `g` of the weight's rows.
    #[track_caller]
    #[must_use]
    pub fn linear_grouped(&mut self, x: &T<'s>, weight: &Weight, groups: usize) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, groups, Epilogue::None, None)
    }

    /// Gate and up projection stacked in one weight, clamped SwiGLU.
    #[track_caller]
    #[must_use]
    pub fn swiglu(&mut self, x: &T<'s>, weight: &Weight, limit: f32) -> T<'s> {
        self.linear_as(Location::caller(), x, weight, 1, Epilogue::SwiGlu { limit }, None)
    }

    fn linear_as(
        &mut self,
        at: &Location<'_>,
        x: &T<'s>,
        weight: &Weight,
        groups: usize,
        epilogue: Epilogue,
        dtype: Option<Dtype>,
    ) -> T<'s> {
        let mut inner = self.inner();
        inner.same(at, &format!("{}: columns in", weight.name), weight.cols * groups, x.cols);
        if !weight.rows.is_multiple_of(groups) {
            inner.fail(at, format!("{}: {} rows do not fall into {groups} groups", weight.name, weight.rows));
        }
        let out = Value { buffer: BufferId(0), dtype: Dtype::U8, len: 0 };
        let mut op = Linear {
            x: x.value,
            weight: inner.weight(weight),
            out,
            rows: x.rows,
            cols_in: x.cols,
            weight_rows: weight.rows,
            groups,
            epilogue,
        };
        let dtype = dtype.unwrap_or(inner.numerics.activation);
        op.out = inner.transient(&result_of(weight), dtype, x.rows, op.cols_out());
        drop(inner);
        let result = T::new(op.out, op.rows, op.cols_out());
        self.append(Op::Linear(op));
        result
    }

    /// f32 logits into an output that later operations read.
    #[track_caller]
    #[must_use]
    pub fn logits(&mut self, x: &T<'s>, weight: &Weight, out: Output<'s>) -> T<'s> {
        let at = Location::caller();
        let mut inner = self.inner();
        inner.same(at, "logits: columns in", weight.cols, x.cols);
        inner.same(at, "logits: columns out", weight.rows, out.cols);
        inner.same(at, "logits: rows", x.rows, out.rows);
        let op = Linear {
            x: x.value,
            weight: inner.weight(weight),
            out: out.value,
            rows: x.rows,
            cols_in: x.cols,
            weight_rows: weight.rows,
            groups: 1,
            epilogue: Epilogue::None,
        };
        drop(inner);
        self.append(Op::Linear(op));
        T::new(out.value, out.rows, out.cols)
    }

    /// The next token of each row, for the host and, in the carry, for the next step. Each request has as many samples.
    #[track_caller]
    pub fn sample(
        &mut self,
        logits: &T<'s>,
        p: &SampleParams<'s>,
        carry: CarryTail<'s>,
        token: Output<'s>,
        status: Output<'s>,
    ) {
        let at = Location::caller();
        let mut inner = self.inner();
        let samples = logits.rows;
        for (what, rows) in
            [("temperature", p.temperature.rows), ("token", token.rows), ("status", status.rows)]
        {
            inner.same(at, &format!("sample: rows of {what}"), samples, rows);
        }
        let CarryTail { carry, .. } = carry;
        let per_request = samples / carry.slot.len.max(1);
        inner.same(at, "sample: samples of all requests", per_request * carry.slot.len, samples);
        drop(inner);
        self.append(Op::Sample(Sample {
            logits: logits.value,
            temperature: p.temperature.value,
            top_p: p.top_p.value,
            min_p: p.min_p.value,
            top_k: p.top_k.value,
            seed: p.seed.value,
            position: p.position.value,
            token: token.value,
            status: status.value,
            carry,
            per_request,
            samples,
            vocab: logits.cols,
        }));
    }
}
