//! The operations that can be run on their own.

use anyhow::bail;
use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{
    Carry, Dtype, Epilogue, ExpertsDown, ExpertsUp, HyperPost, IndexLogits, Linear, Op, Query, RmsNorm,
    Router, Routing, Sample, TopK, Value,
};

use super::bind::Bound;
use super::spec::{Fill, Kind, Spec, may, needs, param, required, value};

/// Operations that cannot be run on their own here; most work on pools and states through slots.
pub(super) const NOT_COVERED: &str =
    "embed, hyper_pre, hyper_head, rope_store, compress, index_store, index_query, index_select, attention";

pub(super) const OPS: &[Spec] =
    &[RMSNORM, LINEAR, QUERY, INDEX_LOGITS, TOPK, ROUTER, EXPERTS_UP, EXPERTS_DOWN, HYPER_POST, SAMPLE];

const RMSNORM: Spec = Spec {
    name: "rmsnorm",
    about: "out[r] = weight * x[r] / sqrt(mean(x[r]^2) + eps), summed in f32, rounded once",
    inputs: &[
        needs("x", Kind::Activation, &["rows", "width"], "rows"),
        needs("weight", Kind::Floats, &["width"], "gain"),
    ],
    params: &[param("eps", 1e-6, "added to the mean square")],
    outputs: &[needs("out", Kind::Activation, &["rows", "width"], "the type of x")],
    op: |b| {
        let (rows, width, eps) = (b.size("rows")?, b.size("width")?, b.param("eps"));
        Ok(Op::RmsNorm(RmsNorm {
            x: value(b, "x")?,
            weight: value(b, "weight")?,
            out: value(b, "out")?,
            rows,
            width,
            eps,
        }))
    },
};

const LINEAR: Spec = Spec {
    name: "linear",
    about: "out = x weight^T, one group, no epilogue; f32 sums, rounded once",
    inputs: &[
        needs("x", Kind::Activation, &["rows", "cols_in"], "rows"),
        needs("weight", Kind::Weight, &["cols_out", "cols_in"], "one row for each output column"),
    ],
    params: &[],
    outputs: &[needs("out", Kind::Activation, &["rows", "cols_out"], "the type of x")],
    op: |b| {
        Ok(Op::Linear(Linear {
            x: value(b, "x")?,
            weight: value(b, "weight")?,
            out: value(b, "out")?,
            rows: b.size("rows")?,
            cols_in: b.size("cols_in")?,
            weight_rows: b.size("cols_out")?,
            groups: 1,
            epilogue: Epilogue::None,
        }))
    },
};

const QUERY: Spec = Spec {
    name: "query",
    about: "each head: q / sqrt(mean(q^2) + eps), then its last 64 dimensions rotated by the row's position",
    inputs: &[
        needs("q", Kind::Activation, &["T", "heads", "512"], "queries of T tokens"),
        needs("rope", Kind::Floats, &["positions", "32", "2"], "cosine and sine of each position and pair"),
        needs("position", Kind::I32, &["T"], "of each token; -1 is padding"),
    ],
    params: &[param("eps", 1e-6, "added to the mean square")],
    outputs: &[needs("out", Kind::Activation, &["T", "heads", "512"], "the type of q")],
    op: |b| {
        let rows = b.size("T")?;
        Ok(Op::Query(Query {
            tokens: b.tokens(rows),
            q: value(b, "q")?,
            rope: value(b, "rope")?,
            out: value(b, "out")?,
            heads: b.size("heads")?,
            max_positions: b.size("positions")?,
            eps: b.param("eps"),
        }))
    },
};

const INDEX_LOGITS: Spec = Spec {
    name: "index_logits",
    about: "logits[t, r] = sum_h scale weights[t, h] relu(q[t, h] . keys[r]) for r < (position[t] + 1) / 4, NaN from there \
            on; q and keys are first stored in the given format",
    inputs: &[
        needs("q", Kind::Index, &["T", "heads", "128"], "index queries, rotated"),
        needs("keys", Kind::Index, &["64*pages", "128"], "index keys, which all T tokens share"),
        needs("weights", Kind::F32, &["T", "heads"], "of each head"),
        may(
            "position",
            Kind::I32,
            &["T"],
            Fill::Visible("64*pages"),
            "of each token; absent: all rows are seen",
        ),
    ],
    params: &[
        required("bits", "16, 8 or 4: keys and queries in bf16, fp8 or fp4"),
        param("scale", 0.0, "0 is 1 / sqrt(128 heads)"),
    ],
    outputs: &[needs("logits", Kind::F32, &["T", "64*pages"], "scores")],
    op: index_logits,
};

const TOPK: Spec = Spec {
    name: "topk",
    about: "the k largest of logits[t, 0..min((position[t] + 1) / 4, width)] in ascending index order, then -1; ties to the \
            smaller index, NaN below every number",
    inputs: &[
        needs("logits", Kind::F32, &["T", "width"], "scores"),
        may(
            "position",
            Kind::I32,
            &["T"],
            Fill::Visible("width"),
            "of each token; absent: all columns are seen",
        ),
    ],
    params: &[required("k", "how many to select")],
    outputs: &[needs("selected", Kind::I32, &["T", "k"], "columns")],
    op: |b| {
        let rows = b.size("T")?;
        Ok(Op::TopK(TopK {
            tokens: b.tokens(rows),
            logits: value(b, "logits")?,
            width: b.size("width")?,
            selected: value(b, "selected")?,
            k: b.size("k")?,
        }))
    },
};

const ROUTER: Spec = Spec {
    name: "router",
    about: "the k experts with the largest sqrt(softplus(logit)) + bias, ascending, and their weights: factor score / sum \
            of the chosen scores. Routing by a table of tokens is not covered",
    inputs: &[
        needs("logits", Kind::F32, &["T", "experts"], "of each expert"),
        needs("bias", Kind::Floats, &["experts"], "added for the choice only"),
    ],
    params: &[required("k", "experts of a token"), param("factor", 1.5, "of the weights")],
    outputs: &[
        needs("ids", Kind::I32, &["T", "k"], "experts"),
        needs("weights", Kind::F32, &["T", "k"], "of each expert"),
    ],
    op: |b| {
        let rows = b.size("T")?;
        Ok(Op::Router(Router {
            tokens: b.tokens(rows),
            logits: value(b, "logits")?,
            routing: Routing::Scored { bias: value(b, "bias")? },
            ids: value(b, "ids")?,
            weights: value(b, "weights")?,
            experts: b.size("experts")?,
            k: b.size("k")?,
            factor: b.param("factor"),
        }))
    },
};

const EXPERTS_UP: Spec = Spec {
    name: "experts_up",
    about: "h[t, i] = weights[t, i] silu(min(g, limit)) clamp(u, -limit, limit), g and u the products of x[t] with the \
            first and second half of expert ids[t, i]; an id outside 0..experts gives zeros",
    inputs: &[
        needs("x", Kind::Activation, &["T", "hidden"], "rows"),
        needs("ids", Kind::I32, &["T", "k"], "experts of each row"),
        needs("weights", Kind::F32, &["T", "k"], "of each expert"),
        needs(
            "weight",
            Kind::Weight,
            &["experts", "2*width", "hidden"],
            "gate rows, then up rows, of each expert",
        ),
    ],
    params: &[param("limit", 0.0, "0 is none")],
    outputs: &[needs("h", Kind::Activation, &["T", "k", "width"], "the type of x")],
    op: |b| {
        let rows = b.size("T")?;
        Ok(Op::ExpertsUp(ExpertsUp {
            tokens: b.tokens(rows),
            x: value(b, "x")?,
            ids: value(b, "ids")?,
            weights: value(b, "weights")?,
            weight: value(b, "weight")?,
            h: value(b, "h")?,
            experts: b.size("experts")?,
            k: b.size("k")?,
            hidden: b.size("hidden")?,
            width: b.size("width")?,
            limit: b.param("limit"),
        }))
    },
};

const EXPERTS_DOWN: Spec = Spec {
    name: "experts_down",
    about: "y[t] = sum_i weight[ids[t, i]] h[t, i] + shared[t], in the order of ids, the shared expert last, rounded once",
    inputs: &[
        needs("h", Kind::Activation, &["T", "k", "width"], "what experts_up gives"),
        needs("ids", Kind::I32, &["T", "k"], "experts of each row"),
        needs("weight", Kind::Weight, &["experts", "hidden", "width"], "of each expert"),
        may(
            "shared",
            Kind::Activation,
            &["T", "hidden"],
            Fill::Number(0.0),
            "the shared expert's output; absent: 0",
        ),
    ],
    params: &[],
    outputs: &[needs("y", Kind::Activation, &["T", "hidden"], "the type of h")],
    op: |b| {
        let rows = b.size("T")?;
        Ok(Op::ExpertsDown(ExpertsDown {
            tokens: b.tokens(rows),
            h: value(b, "h")?,
            ids: value(b, "ids")?,
            weight: value(b, "weight")?,
            shared: value(b, "shared")?,
            y: value(b, "y")?,
            experts: b.size("experts")?,
            k: b.size("k")?,
            hidden: b.size("hidden")?,
            width: b.size("width")?,
        }))
    },
};

const HYPER_POST: Spec = Spec {
    name: "hyper_post",
    about: "the streams after a sublayer: what comb mixes of streams, and post times y",
    inputs: &[
        needs("streams", Kind::Activation, &["T", "n", "hidden"], "before the sublayer"),
        needs("y", Kind::Activation, &["T", "hidden"], "the sublayer's output"),
        needs("post", Kind::F32, &["T", "n"], "of each stream"),
        needs("comb", Kind::F32, &["T", "n", "n"], "mixing weights"),
    ],
    params: &[],
    outputs: &[needs("out", Kind::Activation, &["T", "n", "hidden"], "the type of streams")],
    op: |b| {
        let rows = b.size("T")?;
        Ok(Op::HyperPost(HyperPost {
            tokens: b.tokens(rows),
            streams: value(b, "streams")?,
            y: value(b, "y")?,
            post: value(b, "post")?,
            comb: value(b, "comb")?,
            out: value(b, "out")?,
            n: b.size("n")?,
            hidden: b.size("hidden")?,
        }))
    },
};

const SAMPLE: Spec = Spec {
    name: "sample",
    about: "the next token of each row: greedy at temperature 0, else drawn from the kept tokens by a number that depends on \
            seed and position alone; status 1 for a row with NaN, +inf or nothing but -inf",
    inputs: &[
        needs("logits", Kind::F32, &["rows", "vocab"], "of each token"),
        may("temperature", Kind::F32, &["rows"], Fill::Number(0.0), "0 is greedy"),
        may("top_p", Kind::F32, &["rows"], Fill::Number(1.0), "mass to keep"),
        may("min_p", Kind::F32, &["rows"], Fill::Number(0.0), "least likelihood against the best"),
        may("top_k", Kind::I32, &["rows"], Fill::Number(0.0), "how many to keep; 0 is all"),
        may("seed", Kind::Seed, &["rows"], Fill::Number(0.0), "of the draw"),
        may("position", Kind::I32, &["rows"], Fill::Number(0.0), "that the new token will have"),
    ],
    params: &[],
    outputs: &[
        needs("token", Kind::I32, &["rows"], "-1 where status is not 0"),
        needs("status", Kind::I32, &["rows"], "0 if a token was chosen"),
    ],
    op: sample,
};

fn index_logits(b: &mut Bound) -> anyhow::Result<Op> {
    let bits = b.param("bits");
    let format = match bits {
        16.0 => IndexFormat::Bf16,
        8.0 => IndexFormat::Fp8,
        4.0 => IndexFormat::Fp4,
        _ => bail!("--param bits: expected 16, 8 or 4, found {bits}"),
    };
    let (rows, heads) = (b.size("T")?, b.size("heads")?);
    let (Some(q), Some(keys)) = (b.index.remove("q"), b.index.remove("keys")) else {
        bail!("q and keys are not bound")
    };
    let (codes, scales) = queries(&q.elements(), format);
    let codes = b.transient("codes", Dtype::U8, codes);
    let scales: Option<Value> = (!scales.is_empty()).then(|| b.transient("scales", Dtype::U8, scales));
    let scale = match b.param("scale") {
        0.0 => 1.0 / (128.0 * heads as f32).sqrt(),
        scale => scale,
    };
    Ok(Op::IndexLogits(IndexLogits {
        tokens: b.tokens(rows),
        codes,
        scales,
        weights: value(b, "weights")?,
        keys: b.pages(&keys, format),
        logits: value(b, "logits")?,
        heads,
        format,
        scale,
    }))
}

/// Codes and scales of vectors of 128.
fn queries(values: &[f32], format: IndexFormat) -> (Vec<u8>, Vec<u8>) {
    let vectors = values.as_chunks::<128>().0;
    let (code, scale) = (format.code_bytes(), format.scale_bytes());
    let (mut codes, mut scales) = (vec![0; vectors.len() * code], vec![0; vectors.len() * scale]);
    for (i, vector) in vectors.iter().enumerate() {
        format.encode(vector, &mut codes[i * code..][..code], &mut scales[i * scale..][..scale]);
    }
    (codes, scales)
}

fn sample(b: &mut Bound) -> anyhow::Result<Op> {
    let samples = b.size("rows")?;
    let slots: Vec<u8> = (0..samples as i32).flat_map(i32::to_le_bytes).collect();
    let slot = b.transient("state_slot", Dtype::I32, slots);
    let state = b.state("carry", samples * Carry::CELLS * 4);
    Ok(Op::Sample(Sample {
        logits: value(b, "logits")?,
        temperature: value(b, "temperature")?,
        top_p: value(b, "top_p")?,
        min_p: value(b, "min_p")?,
        top_k: value(b, "top_k")?,
        seed: value(b, "seed")?,
        position: value(b, "position")?,
        token: value(b, "token")?,
        status: value(b, "status")?,
        carry: Carry { state, slots: samples, slot },
        per_request: 1,
        samples,
        vocab: b.size("vocab")?,
    }))
}
