//! `linear`: rows times a weight in any format.

use super::{Access, Value};

/// What happens to the sums before they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epilogue {
    None,
    /// The first half of the weight's rows is the gate, the second half the up projection; both sums are rounded to the
    /// activation type, then `out = silu(min(gate, limit)) * clamp(up, -limit, limit)`. A limit of 0 is none.
    SwiGlu {
        limit: f32,
    },
}

/// `out[r, g n + j] = sum_k x[r, g k' + k] weight[g n + j, k]`, group `g` of `groups`, `n = cols_out / groups`,
/// `k' = cols_in / groups`; f32 sums. Each output has one canonical sum, whatever the number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Activation `[rows, cols_in]`.
    pub x: Value,
    /// Weight `[weight_rows, cols_in / groups]`, any format.
    pub weight: Value,
    /// Activation or f32 `[rows, cols_out]`.
    pub out: Value,
    pub rows: usize,
    pub cols_in: usize,
    /// Rows of the weight: `cols_out`, or twice that with SwiGLU.
    pub weight_rows: usize,
    pub groups: usize,
    pub epilogue: Epilogue,
}

impl Linear {
    /// Columns of the output.
    #[must_use]
    pub const fn cols_out(&self) -> usize {
        match self.epilogue {
            Epilogue::None => self.weight_rows,
            Epilogue::SwiGlu { .. } => self.weight_rows / 2,
        }
    }

    pub(super) fn regions(&self) -> Vec<Access> {
        vec![self.x.read(), self.weight.read(), self.out.write()]
    }
}
