#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct PagedRows {
    pub pool: *const u8,
    pub table: *const i32,
    pub width: i32,
    pub page_rows: i32,
    pub pages: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of PagedRows"][::std::mem::size_of::<PagedRows>() - 32usize];
    ["Alignment of PagedRows"][::std::mem::align_of::<PagedRows>() - 8usize];
    [
        "Offset of field: PagedRows::pool",
    ][::std::mem::offset_of!(PagedRows, pool) - 0usize];
    [
        "Offset of field: PagedRows::table",
    ][::std::mem::offset_of!(PagedRows, table) - 8usize];
    [
        "Offset of field: PagedRows::width",
    ][::std::mem::offset_of!(PagedRows, width) - 16usize];
    [
        "Offset of field: PagedRows::page_rows",
    ][::std::mem::offset_of!(PagedRows, page_rows) - 20usize];
    [
        "Offset of field: PagedRows::pages",
    ][::std::mem::offset_of!(PagedRows, pages) - 24usize];
    [
        "Offset of field: PagedRows::pad",
    ][::std::mem::offset_of!(PagedRows, pad) - 28usize];
};
pub const kWeightF32: WeightFormat = 0;
pub const kWeightBf16: WeightFormat = 1;
pub const kWeightFp8Block: WeightFormat = 2;
pub const kWeightNvfp4: WeightFormat = 3;
pub const kWeightMxfp4: WeightFormat = 4;
pub type WeightFormat = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct Weight {
    pub codes: *const ::std::os::raw::c_void,
    pub scales: *const ::std::os::raw::c_void,
    pub global: *const f32,
    pub format: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of Weight"][::std::mem::size_of::<Weight>() - 32usize];
    ["Alignment of Weight"][::std::mem::align_of::<Weight>() - 8usize];
    ["Offset of field: Weight::codes"][::std::mem::offset_of!(Weight, codes) - 0usize];
    ["Offset of field: Weight::scales"][::std::mem::offset_of!(Weight, scales) - 8usize];
    [
        "Offset of field: Weight::global",
    ][::std::mem::offset_of!(Weight, global) - 16usize];
    [
        "Offset of field: Weight::format",
    ][::std::mem::offset_of!(Weight, format) - 24usize];
    ["Offset of field: Weight::pad"][::std::mem::offset_of!(Weight, pad) - 28usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct Gain {
    pub data: *const ::std::os::raw::c_void,
    pub is_f32: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of Gain"][::std::mem::size_of::<Gain>() - 16usize];
    ["Alignment of Gain"][::std::mem::align_of::<Gain>() - 8usize];
    ["Offset of field: Gain::data"][::std::mem::offset_of!(Gain, data) - 0usize];
    ["Offset of field: Gain::is_f32"][::std::mem::offset_of!(Gain, is_f32) - 8usize];
    ["Offset of field: Gain::pad"][::std::mem::offset_of!(Gain, pad) - 12usize];
};
pub const kCompressedNone: CompressedRows = 0;
pub const kCompressedSelected: CompressedRows = 1;
pub const kCompressedAll: CompressedRows = 2;
pub type CompressedRows = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttentionParams {
    pub position: *const i32,
    pub q: *const u16,
    pub window: PagedRows,
    pub compressed: PagedRows,
    pub selected: *const i32,
    pub sink: *const f32,
    pub rope: *const f32,
    pub out: *mut u16,
    pub per_request: i32,
    pub heads: i32,
    pub source: i32,
    pub k: i32,
    pub format: i32,
    pub max_positions: i32,
    pub scale: f32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttentionParams"][::std::mem::size_of::<AttentionParams>() - 144usize];
    ["Alignment of AttentionParams"][::std::mem::align_of::<AttentionParams>() - 8usize];
    [
        "Offset of field: AttentionParams::position",
    ][::std::mem::offset_of!(AttentionParams, position) - 0usize];
    [
        "Offset of field: AttentionParams::q",
    ][::std::mem::offset_of!(AttentionParams, q) - 8usize];
    [
        "Offset of field: AttentionParams::window",
    ][::std::mem::offset_of!(AttentionParams, window) - 16usize];
    [
        "Offset of field: AttentionParams::compressed",
    ][::std::mem::offset_of!(AttentionParams, compressed) - 48usize];
    [
        "Offset of field: AttentionParams::selected",
    ][::std::mem::offset_of!(AttentionParams, selected) - 80usize];
    [
        "Offset of field: AttentionParams::sink",
    ][::std::mem::offset_of!(AttentionParams, sink) - 88usize];
    [
        "Offset of field: AttentionParams::rope",
    ][::std::mem::offset_of!(AttentionParams, rope) - 96usize];
    [
        "Offset of field: AttentionParams::out",
    ][::std::mem::offset_of!(AttentionParams, out) - 104usize];
    [
        "Offset of field: AttentionParams::per_request",
    ][::std::mem::offset_of!(AttentionParams, per_request) - 112usize];
    [
        "Offset of field: AttentionParams::heads",
    ][::std::mem::offset_of!(AttentionParams, heads) - 116usize];
    [
        "Offset of field: AttentionParams::source",
    ][::std::mem::offset_of!(AttentionParams, source) - 120usize];
    [
        "Offset of field: AttentionParams::k",
    ][::std::mem::offset_of!(AttentionParams, k) - 124usize];
    [
        "Offset of field: AttentionParams::format",
    ][::std::mem::offset_of!(AttentionParams, format) - 128usize];
    [
        "Offset of field: AttentionParams::max_positions",
    ][::std::mem::offset_of!(AttentionParams, max_positions) - 132usize];
    [
        "Offset of field: AttentionParams::scale",
    ][::std::mem::offset_of!(AttentionParams, scale) - 136usize];
    [
        "Offset of field: AttentionParams::pad",
    ][::std::mem::offset_of!(AttentionParams, pad) - 140usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CanaryParams {
    pub store: *const u32,
    pub spans: *const u64,
    pub out: *mut u64,
    pub words: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CanaryParams"][::std::mem::size_of::<CanaryParams>() - 32usize];
    ["Alignment of CanaryParams"][::std::mem::align_of::<CanaryParams>() - 8usize];
    [
        "Offset of field: CanaryParams::store",
    ][::std::mem::offset_of!(CanaryParams, store) - 0usize];
    [
        "Offset of field: CanaryParams::spans",
    ][::std::mem::offset_of!(CanaryParams, spans) - 8usize];
    [
        "Offset of field: CanaryParams::out",
    ][::std::mem::offset_of!(CanaryParams, out) - 16usize];
    [
        "Offset of field: CanaryParams::words",
    ][::std::mem::offset_of!(CanaryParams, words) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CompressParams {
    pub position: *const i32,
    pub kvg: *const f32,
    pub ape: *const f32,
    pub norm: Gain,
    pub rope: *const f32,
    pub state_slot: *const i32,
    pub row_slot: *const i64,
    pub state: *mut f32,
    pub pool: *mut u8,
    pub per_request: i32,
    pub state_slots: i32,
    pub pages: i32,
    pub page_rows: i32,
    pub format: i32,
    pub trained: i32,
    pub max_positions: i32,
    pub splits: i32,
    pub eps: f32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CompressParams"][::std::mem::size_of::<CompressParams>() - 120usize];
    ["Alignment of CompressParams"][::std::mem::align_of::<CompressParams>() - 8usize];
    [
        "Offset of field: CompressParams::position",
    ][::std::mem::offset_of!(CompressParams, position) - 0usize];
    [
        "Offset of field: CompressParams::kvg",
    ][::std::mem::offset_of!(CompressParams, kvg) - 8usize];
    [
        "Offset of field: CompressParams::ape",
    ][::std::mem::offset_of!(CompressParams, ape) - 16usize];
    [
        "Offset of field: CompressParams::norm",
    ][::std::mem::offset_of!(CompressParams, norm) - 24usize];
    [
        "Offset of field: CompressParams::rope",
    ][::std::mem::offset_of!(CompressParams, rope) - 40usize];
    [
        "Offset of field: CompressParams::state_slot",
    ][::std::mem::offset_of!(CompressParams, state_slot) - 48usize];
    [
        "Offset of field: CompressParams::row_slot",
    ][::std::mem::offset_of!(CompressParams, row_slot) - 56usize];
    [
        "Offset of field: CompressParams::state",
    ][::std::mem::offset_of!(CompressParams, state) - 64usize];
    [
        "Offset of field: CompressParams::pool",
    ][::std::mem::offset_of!(CompressParams, pool) - 72usize];
    [
        "Offset of field: CompressParams::per_request",
    ][::std::mem::offset_of!(CompressParams, per_request) - 80usize];
    [
        "Offset of field: CompressParams::state_slots",
    ][::std::mem::offset_of!(CompressParams, state_slots) - 84usize];
    [
        "Offset of field: CompressParams::pages",
    ][::std::mem::offset_of!(CompressParams, pages) - 88usize];
    [
        "Offset of field: CompressParams::page_rows",
    ][::std::mem::offset_of!(CompressParams, page_rows) - 92usize];
    [
        "Offset of field: CompressParams::format",
    ][::std::mem::offset_of!(CompressParams, format) - 96usize];
    [
        "Offset of field: CompressParams::trained",
    ][::std::mem::offset_of!(CompressParams, trained) - 100usize];
    [
        "Offset of field: CompressParams::max_positions",
    ][::std::mem::offset_of!(CompressParams, max_positions) - 104usize];
    [
        "Offset of field: CompressParams::splits",
    ][::std::mem::offset_of!(CompressParams, splits) - 108usize];
    [
        "Offset of field: CompressParams::eps",
    ][::std::mem::offset_of!(CompressParams, eps) - 112usize];
    [
        "Offset of field: CompressParams::pad",
    ][::std::mem::offset_of!(CompressParams, pad) - 116usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct DelayParams {
    pub nanoseconds: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of DelayParams"][::std::mem::size_of::<DelayParams>() - 8usize];
    ["Alignment of DelayParams"][::std::mem::align_of::<DelayParams>() - 8usize];
    [
        "Offset of field: DelayParams::nanoseconds",
    ][::std::mem::offset_of!(DelayParams, nanoseconds) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct EmbedParams {
    pub position: *const i32,
    pub token: *const i32,
    pub slot: *const i32,
    pub carry: *const i32,
    pub weight: Gain,
    pub out: *mut u16,
    pub ids: *mut i32,
    pub vocab: i32,
    pub hidden: i32,
    pub streams: i32,
    pub per_request: i32,
    pub slots: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of EmbedParams"][::std::mem::size_of::<EmbedParams>() - 88usize];
    ["Alignment of EmbedParams"][::std::mem::align_of::<EmbedParams>() - 8usize];
    [
        "Offset of field: EmbedParams::position",
    ][::std::mem::offset_of!(EmbedParams, position) - 0usize];
    [
        "Offset of field: EmbedParams::token",
    ][::std::mem::offset_of!(EmbedParams, token) - 8usize];
    [
        "Offset of field: EmbedParams::slot",
    ][::std::mem::offset_of!(EmbedParams, slot) - 16usize];
    [
        "Offset of field: EmbedParams::carry",
    ][::std::mem::offset_of!(EmbedParams, carry) - 24usize];
    [
        "Offset of field: EmbedParams::weight",
    ][::std::mem::offset_of!(EmbedParams, weight) - 32usize];
    [
        "Offset of field: EmbedParams::out",
    ][::std::mem::offset_of!(EmbedParams, out) - 48usize];
    [
        "Offset of field: EmbedParams::ids",
    ][::std::mem::offset_of!(EmbedParams, ids) - 56usize];
    [
        "Offset of field: EmbedParams::vocab",
    ][::std::mem::offset_of!(EmbedParams, vocab) - 64usize];
    [
        "Offset of field: EmbedParams::hidden",
    ][::std::mem::offset_of!(EmbedParams, hidden) - 68usize];
    [
        "Offset of field: EmbedParams::streams",
    ][::std::mem::offset_of!(EmbedParams, streams) - 72usize];
    [
        "Offset of field: EmbedParams::per_request",
    ][::std::mem::offset_of!(EmbedParams, per_request) - 76usize];
    [
        "Offset of field: EmbedParams::slots",
    ][::std::mem::offset_of!(EmbedParams, slots) - 80usize];
    [
        "Offset of field: EmbedParams::pad",
    ][::std::mem::offset_of!(EmbedParams, pad) - 84usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ExpertsUpParams {
    pub x: *const u16,
    pub ids: *const i32,
    pub weights: *const f32,
    pub weight: Weight,
    pub h: *mut u16,
    pub rows: i32,
    pub experts: i32,
    pub k: i32,
    pub hidden: i32,
    pub width: i32,
    pub limit: f32,
    pub items: i32,
    pub tokens: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ExpertsUpParams"][::std::mem::size_of::<ExpertsUpParams>() - 96usize];
    ["Alignment of ExpertsUpParams"][::std::mem::align_of::<ExpertsUpParams>() - 8usize];
    [
        "Offset of field: ExpertsUpParams::x",
    ][::std::mem::offset_of!(ExpertsUpParams, x) - 0usize];
    [
        "Offset of field: ExpertsUpParams::ids",
    ][::std::mem::offset_of!(ExpertsUpParams, ids) - 8usize];
    [
        "Offset of field: ExpertsUpParams::weights",
    ][::std::mem::offset_of!(ExpertsUpParams, weights) - 16usize];
    [
        "Offset of field: ExpertsUpParams::weight",
    ][::std::mem::offset_of!(ExpertsUpParams, weight) - 24usize];
    [
        "Offset of field: ExpertsUpParams::h",
    ][::std::mem::offset_of!(ExpertsUpParams, h) - 56usize];
    [
        "Offset of field: ExpertsUpParams::rows",
    ][::std::mem::offset_of!(ExpertsUpParams, rows) - 64usize];
    [
        "Offset of field: ExpertsUpParams::experts",
    ][::std::mem::offset_of!(ExpertsUpParams, experts) - 68usize];
    [
        "Offset of field: ExpertsUpParams::k",
    ][::std::mem::offset_of!(ExpertsUpParams, k) - 72usize];
    [
        "Offset of field: ExpertsUpParams::hidden",
    ][::std::mem::offset_of!(ExpertsUpParams, hidden) - 76usize];
    [
        "Offset of field: ExpertsUpParams::width",
    ][::std::mem::offset_of!(ExpertsUpParams, width) - 80usize];
    [
        "Offset of field: ExpertsUpParams::limit",
    ][::std::mem::offset_of!(ExpertsUpParams, limit) - 84usize];
    [
        "Offset of field: ExpertsUpParams::items",
    ][::std::mem::offset_of!(ExpertsUpParams, items) - 88usize];
    [
        "Offset of field: ExpertsUpParams::tokens",
    ][::std::mem::offset_of!(ExpertsUpParams, tokens) - 92usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ExpertsDownParams {
    pub h: *const u16,
    pub ids: *const i32,
    pub weight: Weight,
    pub shared: *const u16,
    pub y: *mut u16,
    pub rows: i32,
    pub experts: i32,
    pub k: i32,
    pub hidden: i32,
    pub width: i32,
    pub items: i32,
    pub tokens: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ExpertsDownParams"][::std::mem::size_of::<ExpertsDownParams>() - 96usize];
    [
        "Alignment of ExpertsDownParams",
    ][::std::mem::align_of::<ExpertsDownParams>() - 8usize];
    [
        "Offset of field: ExpertsDownParams::h",
    ][::std::mem::offset_of!(ExpertsDownParams, h) - 0usize];
    [
        "Offset of field: ExpertsDownParams::ids",
    ][::std::mem::offset_of!(ExpertsDownParams, ids) - 8usize];
    [
        "Offset of field: ExpertsDownParams::weight",
    ][::std::mem::offset_of!(ExpertsDownParams, weight) - 16usize];
    [
        "Offset of field: ExpertsDownParams::shared",
    ][::std::mem::offset_of!(ExpertsDownParams, shared) - 48usize];
    [
        "Offset of field: ExpertsDownParams::y",
    ][::std::mem::offset_of!(ExpertsDownParams, y) - 56usize];
    [
        "Offset of field: ExpertsDownParams::rows",
    ][::std::mem::offset_of!(ExpertsDownParams, rows) - 64usize];
    [
        "Offset of field: ExpertsDownParams::experts",
    ][::std::mem::offset_of!(ExpertsDownParams, experts) - 68usize];
    [
        "Offset of field: ExpertsDownParams::k",
    ][::std::mem::offset_of!(ExpertsDownParams, k) - 72usize];
    [
        "Offset of field: ExpertsDownParams::hidden",
    ][::std::mem::offset_of!(ExpertsDownParams, hidden) - 76usize];
    [
        "Offset of field: ExpertsDownParams::width",
    ][::std::mem::offset_of!(ExpertsDownParams, width) - 80usize];
    [
        "Offset of field: ExpertsDownParams::items",
    ][::std::mem::offset_of!(ExpertsDownParams, items) - 84usize];
    [
        "Offset of field: ExpertsDownParams::tokens",
    ][::std::mem::offset_of!(ExpertsDownParams, tokens) - 88usize];
    [
        "Offset of field: ExpertsDownParams::pad",
    ][::std::mem::offset_of!(ExpertsDownParams, pad) - 92usize];
};
pub const kFillF32: FillKind = 0;
pub const kFillBf16: FillKind = 1;
pub const kFillE4m3: FillKind = 2;
pub const kFillBytes: FillKind = 3;
pub const kFillByte: FillKind = 4;
pub type FillKind = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct FillParams {
    pub out: *mut ::std::os::raw::c_void,
    pub count: i64,
    pub seed: u64,
    pub mean: f32,
    pub scale: f32,
    pub kind: i32,
    pub byte: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of FillParams"][::std::mem::size_of::<FillParams>() - 40usize];
    ["Alignment of FillParams"][::std::mem::align_of::<FillParams>() - 8usize];
    [
        "Offset of field: FillParams::out",
    ][::std::mem::offset_of!(FillParams, out) - 0usize];
    [
        "Offset of field: FillParams::count",
    ][::std::mem::offset_of!(FillParams, count) - 8usize];
    [
        "Offset of field: FillParams::seed",
    ][::std::mem::offset_of!(FillParams, seed) - 16usize];
    [
        "Offset of field: FillParams::mean",
    ][::std::mem::offset_of!(FillParams, mean) - 24usize];
    [
        "Offset of field: FillParams::scale",
    ][::std::mem::offset_of!(FillParams, scale) - 28usize];
    [
        "Offset of field: FillParams::kind",
    ][::std::mem::offset_of!(FillParams, kind) - 32usize];
    [
        "Offset of field: FillParams::byte",
    ][::std::mem::offset_of!(FillParams, byte) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct HyperPreParams {
    pub position: *const i32,
    pub streams: *const u16,
    pub mix: *const f32,
    pub base: *const f32,
    pub scale: *const f32,
    pub norm: Gain,
    pub out: *mut u16,
    pub post: *mut f32,
    pub comb: *mut f32,
    pub n: i32,
    pub hidden: i32,
    pub sinkhorn_iters: i32,
    pub eps: f32,
    pub hc_eps: f32,
    pub rows: i32,
    pub per_cluster: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of HyperPreParams"][::std::mem::size_of::<HyperPreParams>() - 112usize];
    ["Alignment of HyperPreParams"][::std::mem::align_of::<HyperPreParams>() - 8usize];
    [
        "Offset of field: HyperPreParams::position",
    ][::std::mem::offset_of!(HyperPreParams, position) - 0usize];
    [
        "Offset of field: HyperPreParams::streams",
    ][::std::mem::offset_of!(HyperPreParams, streams) - 8usize];
    [
        "Offset of field: HyperPreParams::mix",
    ][::std::mem::offset_of!(HyperPreParams, mix) - 16usize];
    [
        "Offset of field: HyperPreParams::base",
    ][::std::mem::offset_of!(HyperPreParams, base) - 24usize];
    [
        "Offset of field: HyperPreParams::scale",
    ][::std::mem::offset_of!(HyperPreParams, scale) - 32usize];
    [
        "Offset of field: HyperPreParams::norm",
    ][::std::mem::offset_of!(HyperPreParams, norm) - 40usize];
    [
        "Offset of field: HyperPreParams::out",
    ][::std::mem::offset_of!(HyperPreParams, out) - 56usize];
    [
        "Offset of field: HyperPreParams::post",
    ][::std::mem::offset_of!(HyperPreParams, post) - 64usize];
    [
        "Offset of field: HyperPreParams::comb",
    ][::std::mem::offset_of!(HyperPreParams, comb) - 72usize];
    [
        "Offset of field: HyperPreParams::n",
    ][::std::mem::offset_of!(HyperPreParams, n) - 80usize];
    [
        "Offset of field: HyperPreParams::hidden",
    ][::std::mem::offset_of!(HyperPreParams, hidden) - 84usize];
    [
        "Offset of field: HyperPreParams::sinkhorn_iters",
    ][::std::mem::offset_of!(HyperPreParams, sinkhorn_iters) - 88usize];
    [
        "Offset of field: HyperPreParams::eps",
    ][::std::mem::offset_of!(HyperPreParams, eps) - 92usize];
    [
        "Offset of field: HyperPreParams::hc_eps",
    ][::std::mem::offset_of!(HyperPreParams, hc_eps) - 96usize];
    [
        "Offset of field: HyperPreParams::rows",
    ][::std::mem::offset_of!(HyperPreParams, rows) - 100usize];
    [
        "Offset of field: HyperPreParams::per_cluster",
    ][::std::mem::offset_of!(HyperPreParams, per_cluster) - 104usize];
    [
        "Offset of field: HyperPreParams::pad",
    ][::std::mem::offset_of!(HyperPreParams, pad) - 108usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct HyperPostParams {
    pub position: *const i32,
    pub streams: *const u16,
    pub y: *const u16,
    pub post: *const f32,
    pub comb: *const f32,
    pub out: *mut u16,
    pub n: i32,
    pub hidden: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of HyperPostParams"][::std::mem::size_of::<HyperPostParams>() - 56usize];
    ["Alignment of HyperPostParams"][::std::mem::align_of::<HyperPostParams>() - 8usize];
    [
        "Offset of field: HyperPostParams::position",
    ][::std::mem::offset_of!(HyperPostParams, position) - 0usize];
    [
        "Offset of field: HyperPostParams::streams",
    ][::std::mem::offset_of!(HyperPostParams, streams) - 8usize];
    [
        "Offset of field: HyperPostParams::y",
    ][::std::mem::offset_of!(HyperPostParams, y) - 16usize];
    [
        "Offset of field: HyperPostParams::post",
    ][::std::mem::offset_of!(HyperPostParams, post) - 24usize];
    [
        "Offset of field: HyperPostParams::comb",
    ][::std::mem::offset_of!(HyperPostParams, comb) - 32usize];
    [
        "Offset of field: HyperPostParams::out",
    ][::std::mem::offset_of!(HyperPostParams, out) - 40usize];
    [
        "Offset of field: HyperPostParams::n",
    ][::std::mem::offset_of!(HyperPostParams, n) - 48usize];
    [
        "Offset of field: HyperPostParams::hidden",
    ][::std::mem::offset_of!(HyperPostParams, hidden) - 52usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct HyperHeadParams {
    pub streams: *const u16,
    pub rows: *const i32,
    pub mix: *const f32,
    pub base: *const f32,
    pub scale: *const f32,
    pub norm: Gain,
    pub out: *mut u16,
    pub tokens: i32,
    pub n: i32,
    pub hidden: i32,
    pub eps: f32,
    pub hc_eps: f32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of HyperHeadParams"][::std::mem::size_of::<HyperHeadParams>() - 88usize];
    ["Alignment of HyperHeadParams"][::std::mem::align_of::<HyperHeadParams>() - 8usize];
    [
        "Offset of field: HyperHeadParams::streams",
    ][::std::mem::offset_of!(HyperHeadParams, streams) - 0usize];
    [
        "Offset of field: HyperHeadParams::rows",
    ][::std::mem::offset_of!(HyperHeadParams, rows) - 8usize];
    [
        "Offset of field: HyperHeadParams::mix",
    ][::std::mem::offset_of!(HyperHeadParams, mix) - 16usize];
    [
        "Offset of field: HyperHeadParams::base",
    ][::std::mem::offset_of!(HyperHeadParams, base) - 24usize];
    [
        "Offset of field: HyperHeadParams::scale",
    ][::std::mem::offset_of!(HyperHeadParams, scale) - 32usize];
    [
        "Offset of field: HyperHeadParams::norm",
    ][::std::mem::offset_of!(HyperHeadParams, norm) - 40usize];
    [
        "Offset of field: HyperHeadParams::out",
    ][::std::mem::offset_of!(HyperHeadParams, out) - 56usize];
    [
        "Offset of field: HyperHeadParams::tokens",
    ][::std::mem::offset_of!(HyperHeadParams, tokens) - 64usize];
    [
        "Offset of field: HyperHeadParams::n",
    ][::std::mem::offset_of!(HyperHeadParams, n) - 68usize];
    [
        "Offset of field: HyperHeadParams::hidden",
    ][::std::mem::offset_of!(HyperHeadParams, hidden) - 72usize];
    [
        "Offset of field: HyperHeadParams::eps",
    ][::std::mem::offset_of!(HyperHeadParams, eps) - 76usize];
    [
        "Offset of field: HyperHeadParams::hc_eps",
    ][::std::mem::offset_of!(HyperHeadParams, hc_eps) - 80usize];
    [
        "Offset of field: HyperHeadParams::pad",
    ][::std::mem::offset_of!(HyperHeadParams, pad) - 84usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct IndexScores {
    pub position: *const i32,
    pub codes: *const u8,
    pub scales: *const u8,
    pub weights: *const f32,
    pub keys: PagedRows,
    pub per_request: i32,
    pub heads: i32,
    pub format: i32,
    pub scale: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of IndexScores"][::std::mem::size_of::<IndexScores>() - 80usize];
    ["Alignment of IndexScores"][::std::mem::align_of::<IndexScores>() - 8usize];
    [
        "Offset of field: IndexScores::position",
    ][::std::mem::offset_of!(IndexScores, position) - 0usize];
    [
        "Offset of field: IndexScores::codes",
    ][::std::mem::offset_of!(IndexScores, codes) - 8usize];
    [
        "Offset of field: IndexScores::scales",
    ][::std::mem::offset_of!(IndexScores, scales) - 16usize];
    [
        "Offset of field: IndexScores::weights",
    ][::std::mem::offset_of!(IndexScores, weights) - 24usize];
    [
        "Offset of field: IndexScores::keys",
    ][::std::mem::offset_of!(IndexScores, keys) - 32usize];
    [
        "Offset of field: IndexScores::per_request",
    ][::std::mem::offset_of!(IndexScores, per_request) - 64usize];
    [
        "Offset of field: IndexScores::heads",
    ][::std::mem::offset_of!(IndexScores, heads) - 68usize];
    [
        "Offset of field: IndexScores::format",
    ][::std::mem::offset_of!(IndexScores, format) - 72usize];
    [
        "Offset of field: IndexScores::scale",
    ][::std::mem::offset_of!(IndexScores, scale) - 76usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct IndexLogitsParams {
    pub scores: IndexScores,
    pub logits: *mut f32,
    pub tokens: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of IndexLogitsParams"][::std::mem::size_of::<IndexLogitsParams>() - 96usize];
    [
        "Alignment of IndexLogitsParams",
    ][::std::mem::align_of::<IndexLogitsParams>() - 8usize];
    [
        "Offset of field: IndexLogitsParams::scores",
    ][::std::mem::offset_of!(IndexLogitsParams, scores) - 0usize];
    [
        "Offset of field: IndexLogitsParams::logits",
    ][::std::mem::offset_of!(IndexLogitsParams, logits) - 80usize];
    [
        "Offset of field: IndexLogitsParams::tokens",
    ][::std::mem::offset_of!(IndexLogitsParams, tokens) - 88usize];
    [
        "Offset of field: IndexLogitsParams::pad",
    ][::std::mem::offset_of!(IndexLogitsParams, pad) - 92usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct IndexQueryParams {
    pub position: *const i32,
    pub q: *const u16,
    pub rope: *const f32,
    pub codes: *mut u8,
    pub scales: *mut u8,
    pub rows: i32,
    pub heads: i32,
    pub format: i32,
    pub max_positions: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of IndexQueryParams"][::std::mem::size_of::<IndexQueryParams>() - 56usize];
    [
        "Alignment of IndexQueryParams",
    ][::std::mem::align_of::<IndexQueryParams>() - 8usize];
    [
        "Offset of field: IndexQueryParams::position",
    ][::std::mem::offset_of!(IndexQueryParams, position) - 0usize];
    [
        "Offset of field: IndexQueryParams::q",
    ][::std::mem::offset_of!(IndexQueryParams, q) - 8usize];
    [
        "Offset of field: IndexQueryParams::rope",
    ][::std::mem::offset_of!(IndexQueryParams, rope) - 16usize];
    [
        "Offset of field: IndexQueryParams::codes",
    ][::std::mem::offset_of!(IndexQueryParams, codes) - 24usize];
    [
        "Offset of field: IndexQueryParams::scales",
    ][::std::mem::offset_of!(IndexQueryParams, scales) - 32usize];
    [
        "Offset of field: IndexQueryParams::rows",
    ][::std::mem::offset_of!(IndexQueryParams, rows) - 40usize];
    [
        "Offset of field: IndexQueryParams::heads",
    ][::std::mem::offset_of!(IndexQueryParams, heads) - 44usize];
    [
        "Offset of field: IndexQueryParams::format",
    ][::std::mem::offset_of!(IndexQueryParams, format) - 48usize];
    [
        "Offset of field: IndexQueryParams::max_positions",
    ][::std::mem::offset_of!(IndexQueryParams, max_positions) - 52usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct IndexSelectParams {
    pub scores: IndexScores,
    pub selected: *mut i32,
    pub k: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of IndexSelectParams"][::std::mem::size_of::<IndexSelectParams>() - 96usize];
    [
        "Alignment of IndexSelectParams",
    ][::std::mem::align_of::<IndexSelectParams>() - 8usize];
    [
        "Offset of field: IndexSelectParams::scores",
    ][::std::mem::offset_of!(IndexSelectParams, scores) - 0usize];
    [
        "Offset of field: IndexSelectParams::selected",
    ][::std::mem::offset_of!(IndexSelectParams, selected) - 80usize];
    [
        "Offset of field: IndexSelectParams::k",
    ][::std::mem::offset_of!(IndexSelectParams, k) - 88usize];
    [
        "Offset of field: IndexSelectParams::pad",
    ][::std::mem::offset_of!(IndexSelectParams, pad) - 92usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct LinearParams {
    pub x: *const u16,
    pub weight: Weight,
    pub out: *mut ::std::os::raw::c_void,
    pub rows: i32,
    pub depth: i32,
    pub weight_rows: i32,
    pub groups: i32,
    pub out_f32: i32,
    pub swiglu: i32,
    pub limit: f32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of LinearParams"][::std::mem::size_of::<LinearParams>() - 80usize];
    ["Alignment of LinearParams"][::std::mem::align_of::<LinearParams>() - 8usize];
    [
        "Offset of field: LinearParams::x",
    ][::std::mem::offset_of!(LinearParams, x) - 0usize];
    [
        "Offset of field: LinearParams::weight",
    ][::std::mem::offset_of!(LinearParams, weight) - 8usize];
    [
        "Offset of field: LinearParams::out",
    ][::std::mem::offset_of!(LinearParams, out) - 40usize];
    [
        "Offset of field: LinearParams::rows",
    ][::std::mem::offset_of!(LinearParams, rows) - 48usize];
    [
        "Offset of field: LinearParams::depth",
    ][::std::mem::offset_of!(LinearParams, depth) - 52usize];
    [
        "Offset of field: LinearParams::weight_rows",
    ][::std::mem::offset_of!(LinearParams, weight_rows) - 56usize];
    [
        "Offset of field: LinearParams::groups",
    ][::std::mem::offset_of!(LinearParams, groups) - 60usize];
    [
        "Offset of field: LinearParams::out_f32",
    ][::std::mem::offset_of!(LinearParams, out_f32) - 64usize];
    [
        "Offset of field: LinearParams::swiglu",
    ][::std::mem::offset_of!(LinearParams, swiglu) - 68usize];
    [
        "Offset of field: LinearParams::limit",
    ][::std::mem::offset_of!(LinearParams, limit) - 72usize];
    [
        "Offset of field: LinearParams::pad",
    ][::std::mem::offset_of!(LinearParams, pad) - 76usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct Fp4DequantizeParams {
    pub codes: *const u8,
    pub scales: *const u8,
    pub out: *mut ::std::os::raw::c_void,
    pub elements: i64,
    pub scale2: f32,
    pub out_scale: f32,
    pub mxfp4: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of Fp4DequantizeParams",
    ][::std::mem::size_of::<Fp4DequantizeParams>() - 48usize];
    [
        "Alignment of Fp4DequantizeParams",
    ][::std::mem::align_of::<Fp4DequantizeParams>() - 8usize];
    [
        "Offset of field: Fp4DequantizeParams::codes",
    ][::std::mem::offset_of!(Fp4DequantizeParams, codes) - 0usize];
    [
        "Offset of field: Fp4DequantizeParams::scales",
    ][::std::mem::offset_of!(Fp4DequantizeParams, scales) - 8usize];
    [
        "Offset of field: Fp4DequantizeParams::out",
    ][::std::mem::offset_of!(Fp4DequantizeParams, out) - 16usize];
    [
        "Offset of field: Fp4DequantizeParams::elements",
    ][::std::mem::offset_of!(Fp4DequantizeParams, elements) - 24usize];
    [
        "Offset of field: Fp4DequantizeParams::scale2",
    ][::std::mem::offset_of!(Fp4DequantizeParams, scale2) - 32usize];
    [
        "Offset of field: Fp4DequantizeParams::out_scale",
    ][::std::mem::offset_of!(Fp4DequantizeParams, out_scale) - 36usize];
    [
        "Offset of field: Fp4DequantizeParams::mxfp4",
    ][::std::mem::offset_of!(Fp4DequantizeParams, mxfp4) - 40usize];
    [
        "Offset of field: Fp4DequantizeParams::pad",
    ][::std::mem::offset_of!(Fp4DequantizeParams, pad) - 44usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct Fp4QuantizeParams {
    pub x: *const ::std::os::raw::c_void,
    pub codes: *mut u8,
    pub scales: *mut u8,
    pub elements: i64,
    pub scale2: f32,
    pub mxfp4: i32,
    pub is_f32: i32,
    pub pad: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of Fp4QuantizeParams"][::std::mem::size_of::<Fp4QuantizeParams>() - 48usize];
    [
        "Alignment of Fp4QuantizeParams",
    ][::std::mem::align_of::<Fp4QuantizeParams>() - 8usize];
    [
        "Offset of field: Fp4QuantizeParams::x",
    ][::std::mem::offset_of!(Fp4QuantizeParams, x) - 0usize];
    [
        "Offset of field: Fp4QuantizeParams::codes",
    ][::std::mem::offset_of!(Fp4QuantizeParams, codes) - 8usize];
    [
        "Offset of field: Fp4QuantizeParams::scales",
    ][::std::mem::offset_of!(Fp4QuantizeParams, scales) - 16usize];
    [
        "Offset of field: Fp4QuantizeParams::elements",
    ][::std::mem::offset_of!(Fp4QuantizeParams, elements) - 24usize];
    [
        "Offset of field: Fp4QuantizeParams::scale2",
    ][::std::mem::offset_of!(Fp4QuantizeParams, scale2) - 32usize];
    [
        "Offset of field: Fp4QuantizeParams::mxfp4",
    ][::std::mem::offset_of!(Fp4QuantizeParams, mxfp4) - 36usize];
    [
        "Offset of field: Fp4QuantizeParams::is_f32",
    ][::std::mem::offset_of!(Fp4QuantizeParams, is_f32) - 40usize];
    [
        "Offset of field: Fp4QuantizeParams::pad",
    ][::std::mem::offset_of!(Fp4QuantizeParams, pad) - 44usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct QueryParams {
    pub position: *const i32,
    pub q: *const u16,
    pub rope: *const f32,
    pub out: *mut u16,
    pub rows: i32,
    pub heads: i32,
    pub max_positions: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of QueryParams"][::std::mem::size_of::<QueryParams>() - 48usize];
    ["Alignment of QueryParams"][::std::mem::align_of::<QueryParams>() - 8usize];
    [
        "Offset of field: QueryParams::position",
    ][::std::mem::offset_of!(QueryParams, position) - 0usize];
    ["Offset of field: QueryParams::q"][::std::mem::offset_of!(QueryParams, q) - 8usize];
    [
        "Offset of field: QueryParams::rope",
    ][::std::mem::offset_of!(QueryParams, rope) - 16usize];
    [
        "Offset of field: QueryParams::out",
    ][::std::mem::offset_of!(QueryParams, out) - 24usize];
    [
        "Offset of field: QueryParams::rows",
    ][::std::mem::offset_of!(QueryParams, rows) - 32usize];
    [
        "Offset of field: QueryParams::heads",
    ][::std::mem::offset_of!(QueryParams, heads) - 36usize];
    [
        "Offset of field: QueryParams::max_positions",
    ][::std::mem::offset_of!(QueryParams, max_positions) - 40usize];
    [
        "Offset of field: QueryParams::eps",
    ][::std::mem::offset_of!(QueryParams, eps) - 44usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RmsNormParams {
    pub x: *const u16,
    pub out: *mut u16,
    pub weight: Gain,
    pub width: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RmsNormParams"][::std::mem::size_of::<RmsNormParams>() - 40usize];
    ["Alignment of RmsNormParams"][::std::mem::align_of::<RmsNormParams>() - 8usize];
    [
        "Offset of field: RmsNormParams::x",
    ][::std::mem::offset_of!(RmsNormParams, x) - 0usize];
    [
        "Offset of field: RmsNormParams::out",
    ][::std::mem::offset_of!(RmsNormParams, out) - 8usize];
    [
        "Offset of field: RmsNormParams::weight",
    ][::std::mem::offset_of!(RmsNormParams, weight) - 16usize];
    [
        "Offset of field: RmsNormParams::width",
    ][::std::mem::offset_of!(RmsNormParams, width) - 32usize];
    [
        "Offset of field: RmsNormParams::eps",
    ][::std::mem::offset_of!(RmsNormParams, eps) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RopeStoreParams {
    pub position: *const i32,
    pub kv: *const u16,
    pub norm: Gain,
    pub rope: *const f32,
    pub slot: *const i64,
    pub pool: *mut u8,
    pub rows: i32,
    pub pages: i32,
    pub format: i32,
    pub trained: i32,
    pub max_positions: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RopeStoreParams"][::std::mem::size_of::<RopeStoreParams>() - 80usize];
    ["Alignment of RopeStoreParams"][::std::mem::align_of::<RopeStoreParams>() - 8usize];
    [
        "Offset of field: RopeStoreParams::position",
    ][::std::mem::offset_of!(RopeStoreParams, position) - 0usize];
    [
        "Offset of field: RopeStoreParams::kv",
    ][::std::mem::offset_of!(RopeStoreParams, kv) - 8usize];
    [
        "Offset of field: RopeStoreParams::norm",
    ][::std::mem::offset_of!(RopeStoreParams, norm) - 16usize];
    [
        "Offset of field: RopeStoreParams::rope",
    ][::std::mem::offset_of!(RopeStoreParams, rope) - 32usize];
    [
        "Offset of field: RopeStoreParams::slot",
    ][::std::mem::offset_of!(RopeStoreParams, slot) - 40usize];
    [
        "Offset of field: RopeStoreParams::pool",
    ][::std::mem::offset_of!(RopeStoreParams, pool) - 48usize];
    [
        "Offset of field: RopeStoreParams::rows",
    ][::std::mem::offset_of!(RopeStoreParams, rows) - 56usize];
    [
        "Offset of field: RopeStoreParams::pages",
    ][::std::mem::offset_of!(RopeStoreParams, pages) - 60usize];
    [
        "Offset of field: RopeStoreParams::format",
    ][::std::mem::offset_of!(RopeStoreParams, format) - 64usize];
    [
        "Offset of field: RopeStoreParams::trained",
    ][::std::mem::offset_of!(RopeStoreParams, trained) - 68usize];
    [
        "Offset of field: RopeStoreParams::max_positions",
    ][::std::mem::offset_of!(RopeStoreParams, max_positions) - 72usize];
    [
        "Offset of field: RopeStoreParams::eps",
    ][::std::mem::offset_of!(RopeStoreParams, eps) - 76usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RouterParams {
    pub position: *const i32,
    pub logits: *const f32,
    pub bias: *const f32,
    pub table: *const i32,
    pub token: *const i32,
    pub ids: *mut i32,
    pub weights: *mut f32,
    pub experts: i32,
    pub k: i32,
    pub vocab: i32,
    pub factor: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RouterParams"][::std::mem::size_of::<RouterParams>() - 72usize];
    ["Alignment of RouterParams"][::std::mem::align_of::<RouterParams>() - 8usize];
    [
        "Offset of field: RouterParams::position",
    ][::std::mem::offset_of!(RouterParams, position) - 0usize];
    [
        "Offset of field: RouterParams::logits",
    ][::std::mem::offset_of!(RouterParams, logits) - 8usize];
    [
        "Offset of field: RouterParams::bias",
    ][::std::mem::offset_of!(RouterParams, bias) - 16usize];
    [
        "Offset of field: RouterParams::table",
    ][::std::mem::offset_of!(RouterParams, table) - 24usize];
    [
        "Offset of field: RouterParams::token",
    ][::std::mem::offset_of!(RouterParams, token) - 32usize];
    [
        "Offset of field: RouterParams::ids",
    ][::std::mem::offset_of!(RouterParams, ids) - 40usize];
    [
        "Offset of field: RouterParams::weights",
    ][::std::mem::offset_of!(RouterParams, weights) - 48usize];
    [
        "Offset of field: RouterParams::experts",
    ][::std::mem::offset_of!(RouterParams, experts) - 56usize];
    [
        "Offset of field: RouterParams::k",
    ][::std::mem::offset_of!(RouterParams, k) - 60usize];
    [
        "Offset of field: RouterParams::vocab",
    ][::std::mem::offset_of!(RouterParams, vocab) - 64usize];
    [
        "Offset of field: RouterParams::factor",
    ][::std::mem::offset_of!(RouterParams, factor) - 68usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct SampleParams {
    pub logits: *const f32,
    pub temperature: *const f32,
    pub top_p: *const f32,
    pub min_p: *const f32,
    pub top_k: *const i32,
    pub seed: *const u64,
    pub position: *const i32,
    pub token: *mut i32,
    pub status: *mut i32,
    pub slot: *const i32,
    pub carry: *mut i32,
    pub vocab: i32,
    pub per_request: i32,
    pub slots: i32,
    pub run: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SampleParams"][::std::mem::size_of::<SampleParams>() - 104usize];
    ["Alignment of SampleParams"][::std::mem::align_of::<SampleParams>() - 8usize];
    [
        "Offset of field: SampleParams::logits",
    ][::std::mem::offset_of!(SampleParams, logits) - 0usize];
    [
        "Offset of field: SampleParams::temperature",
    ][::std::mem::offset_of!(SampleParams, temperature) - 8usize];
    [
        "Offset of field: SampleParams::top_p",
    ][::std::mem::offset_of!(SampleParams, top_p) - 16usize];
    [
        "Offset of field: SampleParams::min_p",
    ][::std::mem::offset_of!(SampleParams, min_p) - 24usize];
    [
        "Offset of field: SampleParams::top_k",
    ][::std::mem::offset_of!(SampleParams, top_k) - 32usize];
    [
        "Offset of field: SampleParams::seed",
    ][::std::mem::offset_of!(SampleParams, seed) - 40usize];
    [
        "Offset of field: SampleParams::position",
    ][::std::mem::offset_of!(SampleParams, position) - 48usize];
    [
        "Offset of field: SampleParams::token",
    ][::std::mem::offset_of!(SampleParams, token) - 56usize];
    [
        "Offset of field: SampleParams::status",
    ][::std::mem::offset_of!(SampleParams, status) - 64usize];
    [
        "Offset of field: SampleParams::slot",
    ][::std::mem::offset_of!(SampleParams, slot) - 72usize];
    [
        "Offset of field: SampleParams::carry",
    ][::std::mem::offset_of!(SampleParams, carry) - 80usize];
    [
        "Offset of field: SampleParams::vocab",
    ][::std::mem::offset_of!(SampleParams, vocab) - 88usize];
    [
        "Offset of field: SampleParams::per_request",
    ][::std::mem::offset_of!(SampleParams, per_request) - 92usize];
    [
        "Offset of field: SampleParams::slots",
    ][::std::mem::offset_of!(SampleParams, slots) - 96usize];
    [
        "Offset of field: SampleParams::run",
    ][::std::mem::offset_of!(SampleParams, run) - 100usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TopKParams {
    pub position: *const i32,
    pub logits: *const f32,
    pub selected: *mut i32,
    pub width: i32,
    pub k: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of TopKParams"][::std::mem::size_of::<TopKParams>() - 32usize];
    ["Alignment of TopKParams"][::std::mem::align_of::<TopKParams>() - 8usize];
    [
        "Offset of field: TopKParams::position",
    ][::std::mem::offset_of!(TopKParams, position) - 0usize];
    [
        "Offset of field: TopKParams::logits",
    ][::std::mem::offset_of!(TopKParams, logits) - 8usize];
    [
        "Offset of field: TopKParams::selected",
    ][::std::mem::offset_of!(TopKParams, selected) - 16usize];
    [
        "Offset of field: TopKParams::width",
    ][::std::mem::offset_of!(TopKParams, width) - 24usize];
    ["Offset of field: TopKParams::k"][::std::mem::offset_of!(TopKParams, k) - 28usize];
};
