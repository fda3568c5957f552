#[allow(unused_imports)]
pub use flashlane::{format::{index_row::IndexFormat, kv_row::KvFormat}, ops::Dtype, step::*};
pub fn n() -> Numerics {
    Numerics { activation: Dtype::F32, trained: false, kv: KvFormat::F32, index: IndexFormat::F32 }
}
pub fn weight(id: u32, rows: usize, cols: usize) -> Weight {
    Weight { id: WeightId(id), name: format!("w{id}"), rows, cols, bytes: rows * cols * 4 }
}
pub fn w() -> Weight {
    weight(0, 512, 512)
}
pub fn norm() -> NormWeights {
    NormWeights { gain: weight(1, 1, 512), eps: 1e-6 }
}
pub fn rope() -> Weight {
    weight(2, 256, 64)
}
pub fn sink() -> Weight {
    weight(3, 1, 1)
}
pub fn open<'s>(root: Root<'s>) -> (T<'s>, T<'s>, Pool<'s>) {
    let position = root.input("position", Dtype::I32, 2, 1);
    root.tokens(2, 1, &position);
    let x = root.input("x", Dtype::F32, 2, 512);
    let slot = root.input("slot", Dtype::I64, 2, 1);
    let table = root.input("table", Dtype::I32, 2, 4);
    let spec = PoolSpec { id: PoolId(0), name: "window".into(), pages: 9, page_rows: 64, page_bytes: 64 * 2048 };
    (x, slot, root.pool(&spec, &table))
}
