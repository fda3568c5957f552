//! What an operation gets: its operands checked for type and length, its weights, and the instructions to use.

use std::borrow::Cow;

use super::knock_out::KnockOut;
use super::rows::{Rows, RowsMut};
use super::simd::Simd;
use super::weights::{Numbers, Weights};
use super::{ExecError, pages::Pages};
use crate::ops::{BufferId, Carry, Dtype, Paged, ROPE_DIM, Tokens, Value};
use crate::step::{Graph, Node, Operands, WeightId};

/// One node about to run.
pub(super) struct Context<'a, 'w> {
    op: &'static str,
    graph: &'w Graph,
    operands: Operands<'a>,
    weights: &'w Weights,
    pub simd: Simd,
    /// The node's layer is knocked out.
    pub knocked_out: Option<KnockOut>,
}

impl<'a, 'w> Context<'a, 'w> {
    pub(super) fn new(graph: &'w Graph, node: &Node, operands: Operands<'a>, weights: &'w Weights) -> Self {
        let (simd, knocked_out) = (weights.simd(), weights.knocked_out(&node.scope));
        Self { op: node.op.name(), graph, operands, weights, simd, knocked_out }
    }

    pub(super) fn expect(
        &self,
        operand: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), ExecError> {
        if expected == found {
            Ok(())
        } else {
            Err(ExecError::Length { op: self.op, operand, expected, found })
        }
    }

    fn check(&self, operand: &'static str, value: &Value, len: usize, dtype: Dtype) -> Result<(), ExecError> {
        self.expect(operand, len, value.len)?;
        if value.dtype == dtype {
            return Ok(());
        }
        Err(ExecError::Dtype { op: self.op, operand, expected: dtype, found: value.dtype })
    }

    /// An activation or f32 value.
    pub(super) fn rows(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<Rows<'a>, ExecError> {
        if value.dtype == Dtype::Bf16 {
            self.check(operand, value, len, Dtype::Bf16)?;
            return Ok(Rows::Bf16(self.operands.read(value)?));
        }
        Ok(Rows::F32(self.f32s(operand, value, len)?))
    }

    pub(super) fn f32s(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [f32], ExecError> {
        self.check(operand, value, len, Dtype::F32)?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn ints(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [i32], ExecError> {
        self.check(operand, value, len, Dtype::I32)?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn longs(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [i64], ExecError> {
        self.check(operand, value, len, Dtype::I64)?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn seeds(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [u64], ExecError> {
        self.check(operand, value, len, Dtype::U64)?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn codes(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a [u8], ExecError> {
        self.check(operand, value, len, Dtype::U8)?;
        Ok(self.operands.read(value)?)
    }

    pub(super) fn positions(&self, tokens: &Tokens) -> Result<&'a [i32], ExecError> {
        self.ints("position", &tokens.position, tokens.rows())
    }

    pub(super) fn rows_mut(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<RowsMut<'a>, ExecError> {
        if value.dtype == Dtype::Bf16 {
            self.check(operand, value, len, Dtype::Bf16)?;
            return Ok(RowsMut::Bf16(self.operands.write(value)?));
        }
        Ok(RowsMut::F32(self.f32s_mut(operand, value, len)?))
    }

    pub(super) fn f32s_mut(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a mut [f32], ExecError> {
        self.check(operand, value, len, Dtype::F32)?;
        Ok(self.operands.write(value)?)
    }

    pub(super) fn ints_mut(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a mut [i32], ExecError> {
        self.check(operand, value, len, Dtype::I32)?;
        Ok(self.operands.write(value)?)
    }

    pub(super) fn codes_mut(
        &mut self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'a mut [u8], ExecError> {
        self.check(operand, value, len, Dtype::U8)?;
        Ok(self.operands.write(value)?)
    }

    /// A whole pool, to write; it must hold `len` bytes or more.
    pub(super) fn pool_mut(&mut self, pool: BufferId, len: usize) -> Result<&'a mut [u8], ExecError> {
        let bytes = self.operands.bytes_mut(pool)?;
        let found = bytes.len();
        bytes.get_mut(..len).ok_or(ExecError::Length { op: self.op, operand: "pool", expected: len, found })
    }

    /// A whole state buffer of `len` f32 or more, to write.
    pub(super) fn state_mut(&mut self, state: BufferId, len: usize) -> Result<&'a mut [f32], ExecError> {
        let op = self.op;
        let bytes = self.operands.bytes_mut(state)?;
        let found = bytes.len() / 4;
        let bytes = bytes.get_mut(..4 * len).ok_or(ExecError::Length {
            op,
            operand: "state",
            expected: len,
            found,
        })?;
        bytemuck::try_cast_slice_mut(bytes).map_err(|_| ExecError::Length {
            op,
            operand: "state",
            expected: len,
            found,
        })
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

    /// A pool behind its page table, `page_bytes` from page to page.
    pub(super) fn pages(
        &self,
        tokens: &Tokens,
        paged: &Paged,
        page_bytes: usize,
    ) -> Result<Pages<'a>, ExecError> {
        let table = self.ints("page table", &paged.table, tokens.requests * paged.width)?;
        let bytes = self.operands.bytes(paged.pool)?;
        if bytes.len() < paged.pages * page_bytes {
            let expected = paged.pages * page_bytes;
            return Err(ExecError::Length { op: self.op, operand: "pool", expected, found: bytes.len() });
        }
        Ok(Pages { table, paged: *paged, bytes, page_bytes })
    }

    fn weight_id(&self, operand: &'static str, value: &Value) -> Result<WeightId, ExecError> {
        self.graph.weight(value).ok_or(ExecError::MissingWeight { op: self.op, operand })
    }

    fn numbers(&self, operand: &'static str, value: &Value, cols: usize) -> Result<Numbers<'w>, ExecError> {
        let found = self.weights.numbers(self.weight_id(operand, value)?, cols);
        found.ok_or(ExecError::MissingWeight { op: self.op, operand })
    }

    /// A weight of `rows x cols`.
    pub(super) fn matrix(
        &self,
        operand: &'static str,
        value: &Value,
        rows: usize,
        cols: usize,
    ) -> Result<Numbers<'w>, ExecError> {
        let numbers = self.numbers(operand, value, cols)?;
        let (expected, found) = ((rows, cols), numbers.shape());
        if expected == found {
            Ok(numbers)
        } else {
            Err(ExecError::Shape { op: self.op, operand, expected, found })
        }
    }

    /// A small weight of `len` elements, whatever its shape.
    pub(super) fn vector(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<Cow<'w, [f32]>, ExecError> {
        let values = self.numbers(operand, value, len)?.values(self.simd);
        self.expect(operand, len, values.len())?;
        Ok(values)
    }

    /// A weight of integers.
    pub(super) fn table(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<&'w [i32], ExecError> {
        let found = self.weights.table(self.weight_id(operand, value)?);
        let found = found.ok_or(ExecError::MissingWeight { op: self.op, operand })?;
        self.expect(operand, len, found.len())?;
        Ok(found)
    }

    /// The cosines and sines of `max_positions` positions.
    pub(super) fn rope(&self, value: &Value, max_positions: usize) -> Result<Rope<'w>, ExecError> {
        let table = self.vector("rope", value, max_positions * ROPE_DIM)?;
        if max_positions == 0 {
            return Err(ExecError::Length { op: self.op, operand: "rope", expected: ROPE_DIM, found: 0 });
        }
        Ok(Rope(table))
    }
}

/// The rotation table.
pub(super) struct Rope<'w>(Cow<'w, [f32]>);

impl Rope<'_> {
    /// The row of a position; positions beyond the table get its last.
    #[inline]
    pub(super) fn row(&self, position: usize) -> &[f32; ROPE_DIM] {
        let rows = self.0.as_chunks().0;
        &rows[position.min(rows.len() - 1)]
    }
}
