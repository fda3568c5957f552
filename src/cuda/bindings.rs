//! Operands of an op as device addresses, each checked against its dimensions and its buffer before it is handed out.

use std::ffi::c_void;

use super::ffi;
use super::{CudaError, DeviceWeights, MatrixFormat};
use crate::ops::{BufferId, Carry, Dtype, Paged, Tokens, Value};
use crate::step::{Class, Graph};

/// Where each buffer of a step lies on the device: address and bytes.
#[derive(Debug)]
pub struct Bindings<'a> {
    pub graph: &'a Graph,
    /// By buffer id; `None` for weights, which go by [`weights`](Self::weights).
    pub buffers: Vec<Option<(u64, usize)>>,
    pub weights: &'a DeviceWeights,
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block may have.
    pub shared_memory: usize,
    /// Every address moved by its buffer's [`displacement`](super::displacement): for a capture that is read, never run.
    pub displaced: bool,
}

impl Bindings<'_> {
    fn place(&self, id: BufferId, address: u64) -> u64 {
        if self.displaced { address.wrapping_add(super::displacement(id)) } else { address }
    }
}

/// The bindings as one op sees them, for errors that name it.
pub(super) struct Bound<'a> {
    pub(super) op: &'static str,
    pub(super) all: &'a Bindings<'a>,
}

impl Bound<'_> {
    /// The start of a dense operand.
    pub(super) fn value<T>(
        &self,
        operand: &'static str,
        value: &Value,
        dtype: Dtype,
        len: usize,
    ) -> Result<*const T, CudaError> {
        if value.len != len {
            return Err(CudaError::Length { op: self.op, operand, expected: len, found: value.len });
        }
        if value.dtype != dtype {
            if dtype == Dtype::Bf16 && value.dtype == Dtype::F32 {
                return Err(CudaError::Unsupported { op: self.op, what: "an f32 activation" });
            }
            return Err(CudaError::Dtype { op: self.op, operand, expected: dtype, found: value.dtype });
        }
        Ok(self.buffer(operand, value.buffer, value.bytes())? as *const T)
    }

    pub(super) fn value_mut<T>(
        &self,
        operand: &'static str,
        value: &Value,
        dtype: Dtype,
        len: usize,
    ) -> Result<*mut T, CudaError> {
        self.value::<T>(operand, value, dtype, len).map(<*const T>::cast_mut)
    }

    /// A buffer of at least `bytes`.
    pub(super) fn buffer(&self, operand: &'static str, id: BufferId, bytes: usize) -> Result<u64, CudaError> {
        let unbound = CudaError::Unbound { op: self.op, operand };
        let (address, len) = self.all.buffers.get(id.0 as usize).copied().flatten().ok_or(unbound)?;
        if len < bytes {
            return Err(CudaError::Length { op: self.op, operand, expected: bytes, found: len });
        }
        Ok(self.all.place(id, address))
    }

    pub(super) fn positions(&self, tokens: &Tokens) -> Result<*const i32, CudaError> {
        self.value("position", &tokens.position, Dtype::I32, tokens.rows())
    }

    /// The tokens carried from step to step.
    pub(super) fn carry(&self, carry: &Carry) -> Result<*const i32, CudaError> {
        Ok(self.buffer("carry", carry.state, 4 * Carry::CELLS * carry.slots)? as *const i32)
    }

    /// A pool of `pages` pages and its table.
    pub(super) fn paged(
        &self,
        operand: &'static str,
        tokens: &Tokens,
        paged: &Paged,
        page_bytes: usize,
    ) -> Result<ffi::PagedRows, CudaError> {
        Ok(ffi::PagedRows {
            pool: self.buffer(operand, paged.pool, paged.pages * page_bytes)? as *const u8,
            table: self.value(operand, &paged.table, Dtype::I32, tokens.requests * paged.width)?,
            width: self.dim("page table width", paged.width)?,
            page_rows: self.dim("rows of a page", paged.page_rows)?,
            pages: self.dim("pages", paged.pages)?,
            pad: 0,
        })
    }

    /// A dimension that a kernel takes as i32.
    pub(super) fn dim(&self, what: &'static str, n: usize) -> Result<i32, CudaError> {
        let limit = i32::MAX as usize;
        i32::try_from(n).map_err(|_| CudaError::Limit { op: self.op, what, limit, found: n })
    }

    pub(super) fn at_most(&self, what: &'static str, n: usize, limit: usize) -> Result<(), CudaError> {
        if n <= limit { Ok(()) } else { Err(CudaError::Limit { op: self.op, what, limit, found: n }) }
    }

    fn stored(&self, operand: &'static str, value: &Value) -> Result<&super::DeviceWeight, CudaError> {
        let unbound = || CudaError::Unbound { op: self.op, operand };
        match self.all.graph.buffer(value.buffer).class {
            Class::Weight(id) => self.all.weights.get(id).ok_or_else(unbound),
            _ => Err(unbound()),
        }
    }

    fn expect_bytes(&self, operand: &'static str, expected: usize, found: usize) -> Result<(), CudaError> {
        if expected == found {
            Ok(())
        } else {
            Err(CudaError::Length { op: self.op, operand, expected, found })
        }
    }

    /// A weight of plain numbers, bf16 or f32.
    pub(super) fn gain(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<ffi::Gain, CudaError> {
        let weight = self.stored(operand, value)?;
        let is_f32 = match weight.format {
            MatrixFormat::F32 => 1,
            MatrixFormat::Bf16 => 0,
            other => {
                let (expected, found) = ("bf16 or f32", other.name());
                return Err(CudaError::Weight { op: self.op, operand, expected, found });
            }
        };
        self.expect_bytes(operand, weight.format.bytes(1, len).0, weight.codes.len())?;
        Ok(ffi::Gain {
            data: self.all.place(value.buffer, weight.codes.address()) as *const c_void,
            is_f32,
            pad: 0,
        })
    }

    /// A weight of exactly one plain format.
    pub(super) fn plain<T>(
        &self,
        operand: &'static str,
        value: &Value,
        format: MatrixFormat,
        len: usize,
    ) -> Result<*const T, CudaError> {
        let weight = self.stored(operand, value)?;
        if weight.format != format {
            let (expected, found) = (format.name(), weight.format.name());
            return Err(CudaError::Weight { op: self.op, operand, expected, found });
        }
        self.expect_bytes(operand, format.bytes(1, len).0, weight.codes.len())?;
        Ok(self.all.place(value.buffer, weight.codes.address()) as *const T)
    }

    pub(super) fn floats(
        &self,
        operand: &'static str,
        value: &Value,
        len: usize,
    ) -> Result<*const f32, CudaError> {
        self.plain(operand, value, MatrixFormat::F32, len)
    }

    /// The rotation table `[max_positions, 32, 2]`.
    pub(super) fn rope(&self, value: &Value, max_positions: usize) -> Result<*const f32, CudaError> {
        self.at_most("an empty rotation table", usize::from(max_positions == 0), 0)?;
        self.floats("rope", value, max_positions * crate::ops::ROPE_DIM)
    }

    /// A stack of matrices in a format that the matrix kernels read.
    pub(super) fn matrix(
        &self,
        operand: &'static str,
        value: &Value,
        stack: usize,
        rows: usize,
        cols: usize,
    ) -> Result<ffi::Weight, CudaError> {
        let weight = self.stored(operand, value)?;
        let format = weight.format;
        match format {
            MatrixFormat::F32 => return Err(CudaError::Unsupported { op: self.op, what: "a matrix in f32" }),
            MatrixFormat::Table => {
                let (expected, found) = ("a matrix", format.name());
                return Err(CudaError::Weight { op: self.op, operand, expected, found });
            }
            _ => {}
        }
        let (codes, scales) = format.bytes(rows, cols);
        self.expect_bytes(operand, stack * codes, weight.codes.len())?;
        self.expect_bytes(
            operand,
            stack * scales,
            weight.scales.as_ref().map_or(0, super::DeviceBuffer::len),
        )?;
        let globals = weight.global.as_ref().map_or(0, |b| b.len() / 4);
        if format == MatrixFormat::Nvfp4 && globals < stack {
            let operand = "second-level scales";
            return Err(CudaError::Length { op: self.op, operand, expected: stack, found: globals });
        }
        let address = |b: &Option<super::DeviceBuffer>| {
            b.as_ref().map_or(0, |b| self.all.place(value.buffer, b.address()))
        };
        Ok(ffi::Weight {
            codes: self.all.place(value.buffer, weight.codes.address()) as *const c_void,
            scales: address(&weight.scales) as *const c_void,
            global: address(&weight.global) as *const f32,
            format: format.code(),
            pad: 0,
        })
    }
}
