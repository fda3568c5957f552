//! placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    Fp8,
    Bf16,
    F32,
}
