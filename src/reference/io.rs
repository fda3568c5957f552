//! Operands as the oracle sees them: every real number an f64, every length checked, one rounding on the way out.

use half::bf16;

use super::{ExecError, Weights};
use crate::ops::{BufferId, Carry, Dtype, Paged, Tokens, Value};
use crate::step::{Graph, Node, Operands};

/// The operands of one node beside the weights it names.
pub(super) struct Io<'a, 'w> {
    op: &'static str,
    graph: &'w Graph,
    operands: Operands<'a>,
    weights: &'w Weights,
}

impl<'a, 'w> Io<'a, 'w> {
    pub(super) fn new(graph: &'w Graph, node: &Node, operands: Operands<'a>, weights: &'w Weights) -> Self {
        Self { op: node.op.name(), graph, operands, weights }
    }

    fn expect_len(&self, operand: &'static str, expected: usize, found: usize) -> Result<(), ExecError> {
        if expected == found {
            return Ok(());
        }
        Err(ExecError::Length { op: self.op, operand, expected, found })
    }

    fn expect_dtype(
        &self,
        operand: &'static str,
        value: &Value,
        expected: &'static str,
    ) -> Result<(), ExecError> {
        let matches = match expected {
            "i32" => value.dtype == Dtype::I32,
            "i64" => value.dtype == Dtype::I64,
            "u64" => value.dtype == Dtype::U64,
            "u8" => value.dtype == Dtype::U8,
            _ => matches!(value.dtype, Dtype::F32 | Dtype::Bf16),
        };
        if matches {
            return Ok(());
        }
        Err(ExecError::Dtype { op: self.op, operand, expected, found: value.dtype })
    }

    /// An activation or f32 value.
    pub(super) fn real(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<Vec<f64>, ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "bf16 or f32")?;
        Ok(match value.dtype {
            Dtype::Bf16 => self.operands.read::<bf16>(value)?.iter().map(|v| v.to_f64()).collect(),
            _ => self.operands.read::<f32>(value)?.iter().map(|&v| f64::from(v)).collect(),
        })
    }

    pub(super) fn ints(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [i32], ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "i32")?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn longs(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [i64], ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "i64")?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn seeds(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [u64], ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "u64")?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn codes(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [u8], ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "u8")?;
        Ok(self.operands.read(value)?)
    }

    /// The position of each row, `None` for padding.
    pub(super) fn positions(&self, tokens: &Tokens) -> Result<Vec<Option<usize>>, ExecError> {
        let all = self.ints("position", &tokens.position, tokens.rows())?;
        Ok(all.iter().map(|&p| usize::try_from(p).ok()).collect())
    }

    /// A weight as numbers.
    pub(super) fn weight(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'w [f64], ExecError> {
        let found = self.weights.real(self.weight_id(operand, value)?);
        let found = found.ok_or(ExecError::MissingWeight { op: self.op, operand })?;
        self.expect_len(operand, len, found.len())?;
        Ok(found)
    }

    /// A weight as a table of integers.
    pub(super) fn table(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'w [i32], ExecError> {
        let found = self.weights.table(self.weight_id(operand, value)?);
        let found = found.ok_or(ExecError::MissingWeight { op: self.op, operand })?;
        self.expect_len(operand, len, found.len())?;
        Ok(found)
    }

    fn weight_id(&self, operand: &'static str, value: &Value) -> Result<crate::step::WeightId, ExecError> {
        self.graph.weight(value).ok_or(ExecError::MissingWeight { op: self.op, operand })
    }

    /// A pool and its page table, each row looked up under its request.
    pub(super) fn pages(&self, tokens: &Tokens, paged: &Paged) -> Result<Pages<'a>, ExecError> {
        let table = self.ints("page table", &paged.table, tokens.requests * paged.width)?;
        Ok(Pages { table, paged: *paged, bytes: self.operands.bytes(paged.pool)? })
    }

    /// A whole buffer to write: a pool or a state.
    pub(super) fn buffer_mut(&mut self, buffer: BufferId) -> Result<&'a mut [u8], ExecError> {
        Ok(self.operands.bytes_mut(buffer)?)
    }

    /// The f32 slots of a state buffer, at least `len` of them.
    pub(super) fn state_mut(&mut self, buffer: BufferId, len: usize) -> Result<&'a mut [f32], ExecError> {
        let all: &mut [f32] = bytemuck::cast_slice_mut(self.operands.bytes_mut(buffer)?);
        let found = all.len();
        let short = ExecError::Length { op: self.op, operand: "state", expected: len, found };
        all.get_mut(..len).ok_or(short)
    }

    /// The carried tokens and the slots of the requests.
    pub(super) fn carry(&self, carry: &Carry, requests: usize) -> Result<(&'a [i32], &'a [i32]), ExecError> {
        let all: &[i32] = bytemuck::cast_slice(self.operands.bytes(carry.state)?);
        let (expected, found) = (carry.slots * Carry::CELLS, all.len());
        let short = ExecError::Length { op: self.op, operand: "carry", expected, found };
        Ok((all.get(..expected).ok_or(short)?, self.ints("state_slot", &carry.slot, requests)?))
    }

    /// The carried tokens to write, and the slots of the requests.
    pub(super) fn carry_mut(
        &mut self,
        carry: &Carry,
        requests: usize,
    ) -> Result<(&'a mut [i32], &'a [i32]), ExecError> {
        let slots = self.ints("state_slot", &carry.slot, requests)?;
        let all: &mut [i32] = bytemuck::cast_slice_mut(self.operands.bytes_mut(carry.state)?);
        let (expected, found) = (carry.slots * Carry::CELLS, all.len());
        let short = ExecError::Length { op: self.op, operand: "carry", expected, found };
        Ok((all.get_mut(..expected).ok_or(short)?, slots))
    }

    /// Refuses an operation whose rows are not as wide as its pool's.
    pub(super) fn expect_width(&self, expected: usize, found: usize) -> Result<(), ExecError> {
        self.expect_len("a compressed row", expected, found)
    }

    /// An activation or f32 output.
    pub(super) fn sink(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<Sink<'a>, ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "bf16 or f32")?;
        Ok(match value.dtype {
            Dtype::Bf16 => Sink::Bf16(self.operands.write(value)?),
            _ => Sink::F32(self.operands.write(value)?),
        })
    }

    pub(super) fn ints_mut(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a mut [i32], ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "i32")?;
        Ok(self.operands.write(value)?)
    }

    pub(super) fn codes_mut(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a mut [u8], ExecError> {
        self.expect_len(operand, len, value.len)?;
        self.expect_dtype(operand, value, "u8")?;
        Ok(self.operands.write(value)?)
    }
}

/// A pool seen through its page table.
pub(super) struct Pages<'a> {
    table: &'a [i32],
    paged: Paged,
    bytes: &'a [u8],
}

impl<'a> Pages<'a> {
    /// The page that holds `row` of `request` and the row's place in it; `None` where the table ends or names no page.
    pub(super) fn find(&self, request: usize, row: usize, page_bytes: usize) -> Option<(&'a [u8], usize)> {
        let Paged { width, page_rows, pages, .. } = self.paged;
        let number = row / page_rows;
        if number >= width {
            return None;
        }
        let id = usize::try_from(self.table[request * width + number]).ok()?;
        if id >= pages {
            return None;
        }
        let page = self.bytes.get(id * page_bytes..(id + 1) * page_bytes)?;
        Some((page, row % page_rows))
    }
}

/// An output of real numbers, each rounded once.
pub(super) enum Sink<'a> {
    Bf16(&'a mut [bf16]),
    F32(&'a mut [f32]),
}

impl Sink<'_> {
    pub(super) fn set(&mut self, index: usize, value: f64) {
        match self {
            Self::Bf16(all) => all[index] = bf16::from_f32(value as f32),
            Self::F32(all) => all[index] = value as f32,
        }
    }

    pub(super) fn set_row(&mut self, row: usize, values: &[f64]) {
        for (i, &v) in values.iter().enumerate() {
            self.set(row * values.len() + i, v);
        }
    }
}

/// `value` as an element of `dtype` keeps it. The one place where bf16 is rounded: from f32, to nearest even.
pub(super) fn rounded(dtype: Dtype, value: f64) -> f64 {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(value as f32).to_f64(),
        _ => f64::from(value as f32),
    }
}
