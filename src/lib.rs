//! DeepSeek-V4-Flash on a step graph that is proved free of cross-stream hazards.
//!
//! A decode step is data: [`model`] appends operations to a [`step`] through lanes, the step's memory is planned and the plan
//! proved, and only then does an executor run it: the f64 oracle ([`mod@reference`]), the CPU path ([`cpu`]), or the GPU. The
//! [`engine`] schedules requests over proved steps; [`cache`] counts pages; [`checkpoint`] turns files into weights.
//!
//! # Operations
//! `T` token rows, `R` requests, `H` heads of 512, `Hi` index heads of 128, `D` hidden, `E` experts of width `I`, `k` chosen.
//! Activations are bf16 or f32. Each operation has one name in every tree: `src/ops/x.rs` describes it, `src/reference/x.rs`
//! is its oracle, `src/cpu/x.rs` serves, `proptests/x.rs` holds every executor to the oracle.
//!
//! | operation | reads | writes |
//! |---|---|---|
//! | [`embed`](ops::Embed) | ids `[T]` | residual streams `[T, 4, D]` |
//! | [`hyper_pre`](ops::HyperPre) | streams `[T, 4, D]` | sublayer input `[T, D]`, way back `[T, 4]`, `[T, 4, 4]` f32 |
//! | [`hyper_post`](ops::HyperPost) | streams, sublayer output, way back | streams |
//! | [`hyper_head`](ops::HyperHead) | streams of chosen rows | `[samples, D]` |
//! | [`rmsnorm`](ops::RmsNorm) | `[rows, width]` | `[rows, width]` |
//! | [`linear`](ops::Linear) | `[rows, K]`; weight bf16, f32, FP8 128x128, NVFP4, MXFP4 | `[rows, N]`, activation or f32 |
//! | [`query`](ops::Query) | `[T, H, 512]` | `[T, H, 512]`, normed and rotated |
//! | [`rope_store`](ops::RopeStore) | `[T, 512]` | window rows in pages of 64: FP8 584 B, bf16 or f32 |
//! | [`compress`](ops::Compress) | `[T, projection]` f32, state | state, compressed rows of 4 or 128 tokens |
//! | [`index_store`](ops::IndexStore) | `[T, 512]` f32, state | state, index keys: bf16 256 B, fp8 132 B, fp4 68 B, f32 |
//! | [`index_query`](ops::IndexQuery) | `[T, Hi, 128]` | codes and scales in the key format |
//! | [`index_logits`](ops::IndexLogits) | codes, head weights `[T, Hi]` f32, keys through a page table | `[T, rows]` f32 |
//! | [`topk`](ops::TopK) | `[T, rows]` f32 | row indices `[T, k]`, ascending |
//! | [`index_select`](ops::IndexSelect) | as `index_logits` | as `topk` of its logits, which are nowhere |
//! | [`attention`](ops::Attention) | `[T, H, 512]`, window and compressed rows | `[T, H, 512]` |
//! | [`router`](ops::Router) | `[T, E]` f32 | expert ids and weights `[T, k]` |
//! | [`experts_up`](ops::ExpertsUp) | `[T, D]`, choice | `[T, k, I]` |
//! | [`experts_down`](ops::ExpertsDown) | `[T, k, I]`, choice, shared expert `[T, D]` | `[T, D]` |
//! | [`sample`](ops::Sample) | logits `[samples, vocab]` f32, parameters | token and status `[samples]` |

pub mod cache;
pub mod checkpoint;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod engine;
pub mod format;
pub mod instrument;
pub mod model;
pub mod ops;
pub mod reference;
pub mod step;
