//! placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexFormat {
    F32,
    Bf16,
    Fp8,
    Fp4,
}
