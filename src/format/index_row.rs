//! placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexFormat {
    F32,
    Bf16,
    Fp8,
    Fp4,
}

impl IndexFormat {
    /// Bytes of one row's codes.
    #[must_use]
    pub const fn code_bytes(self) -> usize {
        match self {
            Self::F32 => 512,
            Self::Bf16 => 256,
            Self::Fp8 => 128,
            Self::Fp4 => 64,
        }
    }
    /// Bytes of one row's scales.
    #[must_use]
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Fp8 | Self::Fp4 => 4,
        }
    }
}
