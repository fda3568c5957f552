//! Checks tensors against a specification and lays them out as the memory of a step of one node.

use std::collections::BTreeMap;

use anyhow::bail;
use flashlane::checkpoint::{Matrix, Part, WeightFormat};
use flashlane::format::index_row::IndexFormat;
use flashlane::ops::{BufferId, Dtype, PAGE_ROWS, Paged, Tokens, Value};
use flashlane::step::{
    ALIGN, Buffer, Bytes, Class, Graph, LaneId, LaneInfo, Memory, Node, Plan, PoolId, Resident, StateId,
    WeightId,
};

use super::spec::{Dim, Fill, Kind, Operand, Spec, list};
use super::tensors::{self, Tensor, Tensors};

/// A weight in the form that each executor makes its own of.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Floats(Vec<f32>),
    Matrix(Matrix),
}

/// A step of one node and its memory.
#[derive(Debug, Default)]
pub(super) struct Bound {
    pub(super) graph: Graph,
    pub(super) plan: Plan,
    pub(super) contents: Vec<Vec<u8>>,
    pub(super) weights: Vec<(WeightId, Stored)>,
    pub(super) values: BTreeMap<&'static str, Value>,
    pub(super) index: BTreeMap<&'static str, Tensor>,
    sizes: BTreeMap<String, (usize, String)>,
    params: Vec<(&'static str, f32)>,
    /// A matrix that was given in F32, which no kernel reads.
    pub(super) wide: Option<&'static str>,
    /// The element type of activations, and the tensor that set it.
    activation: Option<(tensors::Dtype, &'static str)>,
    pub(super) resident: Resident,
}

impl Bound {
    /// Binds `given` to the operands of `spec` and appends the node.
    ///
    /// # Errors
    /// A sentence that names the tensor or dimension, expected and found.
    pub(super) fn new(
        spec: &Spec,
        given: &Tensors,
        params: Vec<(&'static str, f32)>,
    ) -> anyhow::Result<Self> {
        let lanes = vec![LaneInfo { name: "main".into(), parent: None }];
        let mut bound = Self { graph: Graph { lanes, ..Graph::default() }, params, ..Self::default() };
        bound.names(spec, given)?;
        for operand in spec.inputs {
            match given.get(operand.name) {
                Some(tensor) => bound.input(operand, tensor, given)?,
                None => bound.absent(spec, operand)?,
            }
        }
        for operand in spec.outputs {
            bound.output(operand)?;
        }
        let op = (spec.op)(&mut bound)?;
        bound.graph.nodes.push(Node { op, lane: LaneId(0), scope: "op".into(), waits: true });
        Ok(bound)
    }

    fn names(&self, spec: &Spec, given: &Tensors) -> anyhow::Result<()> {
        let known: Vec<&str> = spec.inputs.iter().map(|o| o.name).collect();
        let known_part = |name: &str| match name.split_once('.') {
            Some((whole, "scales" | "scale2")) => {
                spec.inputs.iter().any(|o| o.name == whole && o.kind == Kind::Weight)
            }
            _ => known.contains(&name),
        };
        match given.keys().find(|name| !known_part(name)) {
            Some(name) => bail!("tensor {name}: {} takes {}", spec.name, list(&known)),
            None => Ok(()),
        }
    }

    /// A dimension's size once it is known: a number, a name, `2*name` or `name/2`.
    pub(super) fn size(&self, dim: &str) -> anyhow::Result<usize> {
        if let Ok(number) = dim.parse() {
            return Ok(number);
        }
        if let Some((times, name)) = dim.split_once('*') {
            return Ok(times.parse::<usize>()? * self.size(name)?);
        }
        if let Some(number) = self.params.iter().find(|(name, _)| *name == dim) {
            if number.1 < 1.0 || number.1.fract() != 0.0 || number.1 > 1e6 {
                bail!("--param {dim}: expected a whole number from 1, found {}", number.1);
            }
            return Ok(number.1 as usize);
        }
        match self.sizes.get(dim) {
            Some((size, _)) => Ok(*size),
            None => bail!("dimension {dim} is not known from any tensor"),
        }
    }

    pub(super) fn param(&self, name: &str) -> f32 {
        self.params.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, value)| *value)
    }

    /// Holds `found` against `dims`; a name met for the first time takes its size.
    fn shape(&mut self, tensor: &str, dims: &[Dim], found: &[usize]) -> anyhow::Result<()> {
        if dims.len() != found.len() {
            bail!(
                "tensor {tensor}: expected {} dimensions [{}], found {found:?}",
                dims.len(),
                dims.join(", ")
            );
        }
        for (&dim, &size) in dims.iter().zip(found) {
            if size == 0 {
                bail!("tensor {tensor}: dimension {dim} is 0");
            }
            match self.size(dim) {
                Ok(expected) if expected == size => {}
                Ok(expected) => {
                    let from = self.sizes.get(dim).map(|(_, from)| format!(", as tensor {from} has"));
                    let from = from.unwrap_or_default();
                    bail!("tensor {tensor}: dimension {dim} must be {expected}{from}, found {size}");
                }
                Err(_) => self.learn(tensor, dim, size)?,
            }
        }
        Ok(())
    }

    fn learn(&mut self, tensor: &str, dim: Dim, size: usize) -> anyhow::Result<()> {
        let (times, name) = match dim.split_once('*') {
            Some((times, name)) => (times.parse::<usize>()?, name),
            None => (1, dim),
        };
        if !size.is_multiple_of(times) {
            bail!("tensor {tensor}: dimension {dim} must be a multiple of {times}, found {size}");
        }
        self.sizes.insert(name.into(), (size / times, tensor.into()));
        Ok(())
    }

    fn input(&mut self, operand: &Operand, tensor: &Tensor, all: &Tensors) -> anyhow::Result<()> {
        use tensors::Dtype as D;
        let name = operand.name;
        if operand.kind == Kind::Weight {
            return self.matrix(operand, tensor, all);
        }
        self.shape(name, operand.dims, &tensor.shape)?;
        let dtype = match (operand.kind, tensor.dtype) {
            (Kind::Activation, D::BF16) => Dtype::Bf16,
            (Kind::Activation | Kind::F32 | Kind::Floats | Kind::Index, D::F32) => Dtype::F32,
            (Kind::I32, D::I32) => Dtype::I32,
            (Kind::Seed, D::I64 | D::U64) => Dtype::U64,
            (kind, found) => bail!("tensor {name}: expected {}, found {found:?}", kind.words()),
        };
        if operand.kind == Kind::Activation {
            match self.activation {
                Some((first, of)) if first != tensor.dtype => {
                    bail!("tensor {name}: expected {first:?}, as tensor {of} is, found {:?}", tensor.dtype)
                }
                _ => self.activation = Some((tensor.dtype, name)),
            }
        }
        match operand.kind {
            Kind::Floats => self.weight(name, Stored::Floats(tensor.elements())),
            Kind::Index => drop(self.index.insert(name, tensor.clone())),
            _ => drop(self.transient(name, dtype, tensor.bytes.clone())),
        }
        Ok(())
    }

    fn absent(&mut self, spec: &Spec, operand: &Operand) -> anyhow::Result<()> {
        let mut len = 1;
        let number = match operand.default {
            Some(Fill::Number(number)) => f64::from(number),
            Some(Fill::Visible(rows)) => (4 * self.size(rows)? - 1) as f64,
            None => {
                let (name, dims) = (operand.name, operand.dims.join(", "));
                bail!("tensor {name} is missing: {} needs {} [{dims}]", spec.name, operand.kind.words());
            }
        };
        for dim in operand.dims {
            len *= self.size(dim)?;
        }
        let (dtype, bytes) = match operand.kind {
            Kind::I32 => (Dtype::I32, (number as i32).to_le_bytes().repeat(len)),
            Kind::Seed => (Dtype::U64, (number as u64).to_le_bytes().repeat(len)),
            Kind::Activation if self.dtype() == Dtype::Bf16 => {
                (Dtype::Bf16, half::bf16::from_f64(number).to_le_bytes().repeat(len))
            }
            _ => (Dtype::F32, (number as f32).to_le_bytes().repeat(len)),
        };
        self.transient(operand.name, dtype, bytes);
        Ok(())
    }

    /// The element type of activations.
    pub(super) fn dtype(&self) -> Dtype {
        match self.activation {
            Some((tensors::Dtype::BF16, _)) => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }

    fn output(&mut self, operand: &Operand) -> anyhow::Result<()> {
        let mut len = 1;
        for dim in operand.dims {
            len *= self.size(dim)?;
        }
        let dtype = match operand.kind {
            Kind::Activation => self.dtype(),
            Kind::I32 => Dtype::I32,
            _ => Dtype::F32,
        };
        // What an operation leaves unwritten is NaN, or -1.
        self.transient(operand.name, dtype, vec![0xff; len * dtype.size()]);
        Ok(())
    }

    fn buffer(&mut self, name: &str, class: Class, dtype: Dtype, content: Vec<u8>) -> BufferId {
        let id = BufferId(self.graph.buffers.len() as u32);
        let offset = (class == Class::Transient).then_some(self.plan.arena_bytes);
        if offset.is_some() {
            self.plan.arena_bytes += content.len().next_multiple_of(ALIGN);
        }
        self.plan.offsets.push(offset);
        let (bytes, shape) = (content.len(), vec![content.len() / dtype.size()]);
        self.graph.buffers.push(Buffer { name: name.into(), class, dtype, shape, bytes });
        self.contents.push(content);
        id
    }

    pub(super) fn transient(&mut self, name: &'static str, dtype: Dtype, content: Vec<u8>) -> Value {
        let len = content.len() / dtype.size();
        let buffer = self.buffer(name, Class::Transient, dtype, content);
        let value = Value { buffer, dtype, len };
        self.values.insert(name, value);
        value
    }

    fn weight(&mut self, name: &'static str, stored: Stored) {
        let id = WeightId(self.weights.len() as u32);
        self.weights.push((id, stored));
        let buffer = self.buffer(name, Class::Weight(id), Dtype::U8, Vec::new());
        self.values.insert(name, Value { buffer, dtype: Dtype::U8, len: 0 });
    }

    pub(super) fn state(&mut self, name: &str, bytes: usize) -> BufferId {
        let id = StateId(self.resident.states.len() as u32);
        self.resident.states.push(Bytes::zeroed(bytes));
        self.buffer(name, Class::State(id), Dtype::I32, vec![0; bytes])
    }

    fn pool(&mut self, content: Vec<u8>) -> BufferId {
        let id = PoolId(self.resident.pools.len() as u32);
        let mut owned = Bytes::zeroed(content.len());
        owned.copy_from_slice(&content);
        self.resident.pools.push(owned);
        self.buffer("pool", Class::Pool(id), Dtype::U8, content)
    }

    /// Index keys as pages, page 0 left out: all requests of a step share what a table names.
    pub(super) fn pages(&mut self, keys: &Tensor, format: IndexFormat) -> Paged {
        let rows: Vec<f32> = keys.elements();
        let count = (rows.len() / 128).div_ceil(PAGE_ROWS);
        let page_bytes = PAGE_ROWS * format.row_bytes();
        let mut bytes = vec![0; (count + 1) * page_bytes];
        for (r, row) in rows.as_chunks::<128>().0.iter().enumerate() {
            let at = (r / PAGE_ROWS + 1) * page_bytes;
            format.encode_row(row, &mut bytes[at..at + page_bytes], r % PAGE_ROWS, PAGE_ROWS);
        }
        let table: Vec<u8> = (1..=count as i32).flat_map(i32::to_le_bytes).collect();
        let table = self.transient("table", Dtype::I32, table);
        let pool = self.pool(bytes);
        Paged { pool, table, width: count, page_rows: PAGE_ROWS, pages: count + 1 }
    }

    /// The token rows: `rows` of one request, with operand `position`, or at position 0.
    pub(super) fn tokens(&mut self, rows: usize) -> Tokens {
        let position = self.values.get("position").copied();
        let position = position.unwrap_or_else(|| self.transient("position", Dtype::I32, vec![0; 4 * rows]));
        Tokens { requests: 1, per_request: rows, position }
    }

    fn matrix(&mut self, operand: &Operand, tensor: &Tensor, all: &Tensors) -> anyhow::Result<()> {
        use tensors::Dtype as D;
        let name = operand.name;
        let mut shape = tensor.shape.clone();
        if tensor.dtype == D::U8
            && let Some(last) = shape.last_mut()
        {
            *last *= 2;
        }
        self.shape(name, operand.dims, &shape)?;
        let (rows, cols) = (shape[..shape.len() - 1].iter().product(), shape[shape.len() - 1]);
        let stored = match tensor.dtype {
            D::F32 => {
                self.wide = Some(name);
                Stored::Floats(tensor.elements())
            }
            D::BF16 => Stored::Matrix(whole(name, (rows, cols), WeightFormat::Bf16, tensor, None)),
            D::U8 => {
                let stack = if shape.len() == 3 { shape[0] } else { 1 };
                Stored::Matrix(fp4(name, (rows, cols, stack), tensor, all)?)
            }
            found => bail!("tensor {name}: expected {}, found {found:?}", Kind::Weight.words()),
        };
        self.weight(name, stored);
        Ok(())
    }

    /// The memory of the step before it runs.
    pub(super) fn memory(&self) -> Memory {
        let mut memory = Memory::new(&self.graph, &self.plan);
        for (offset, content) in self.plan.offsets.iter().zip(&self.contents) {
            if let Some(start) = offset {
                memory.arena[*start..*start + content.len()].copy_from_slice(content);
            }
        }
        memory
    }

    /// An output of the step after it ran.
    pub(super) fn result(&self, operand: &Operand, memory: &Memory) -> anyhow::Result<Tensor> {
        let value = super::spec::value(self, operand.name)?;
        let Some(start) = self.plan.offsets[value.buffer.0 as usize] else {
            bail!("{} has no place in memory", operand.name)
        };
        let shape = operand.dims.iter().map(|d| self.size(d)).collect::<anyhow::Result<Vec<_>>>()?;
        let dtype = match value.dtype {
            Dtype::Bf16 => tensors::Dtype::BF16,
            Dtype::I32 => tensors::Dtype::I32,
            _ => tensors::Dtype::F32,
        };
        let bytes = memory.arena[start..start + value.len * value.dtype.size()].to_vec();
        Ok(Tensor { dtype, shape, bytes })
    }
}

fn whole(
    name: &str,
    (rows, cols): (usize, usize),
    format: WeightFormat,
    codes: &Tensor,
    scales: Option<&Tensor>,
) -> Matrix {
    let scales = scales.map(|s| s.bytes.clone()).unwrap_or_default();
    let codes = codes.bytes.clone().into();
    let part = Part { first_row: 0, rows, codes, scales: scales.into(), scale2: 1.0 };
    Matrix { name: name.into(), rows, cols, format, parts: vec![part] }
}

/// Codes `[.., cols / 2]` with `NAME.scales` `[.., cols / 16]` and `NAME.scale2` (NVFP4), or `[.., cols / 32]` (MXFP4).
fn fp4(
    name: &str,
    (rows, cols, stack): (usize, usize, usize),
    codes: &Tensor,
    all: &Tensors,
) -> anyhow::Result<Matrix> {
    let scales_name = format!("{name}.scales");
    let Some(scales) = all.get(&scales_name) else {
        bail!(
            "tensor {scales_name} is missing: {name} is U8 codes, which have a scale for each 16 (NVFP4) or 32 (MXFP4)"
        )
    };
    let scale2 = all.get(&format!("{name}.scale2"));
    let block = if scale2.is_some() { 16 } else { 32 };
    if !cols.is_multiple_of(block) || scales.bytes.len() != rows * cols / block {
        let (expected, found) = (rows * cols / block, scales.bytes.len());
        bail!(
            "tensor {scales_name}: expected {expected} bytes, one for each {block} of {rows} x {cols}, found {found}"
        );
    }
    let Some(scale2) = scale2 else {
        return Ok(whole(name, (rows, cols), WeightFormat::Mxfp4, codes, Some(scales)));
    };
    if scale2.dtype != tensors::Dtype::F32 || scale2.bytes.len() != 4 * stack {
        bail!("tensor {name}.scale2: expected {stack} of F32, found {:?} {:?}", scale2.dtype, scale2.shape);
    }
    let each = rows / stack;
    let part = |(i, scale2): (usize, f32)| Part {
        first_row: i * each,
        rows: each,
        codes: codes.bytes[i * each * cols / 2..(i + 1) * each * cols / 2].to_vec().into(),
        scales: scales.bytes[i * each * cols / 16..(i + 1) * each * cols / 16].to_vec().into(),
        scale2,
    };
    let parts = scale2.elements::<f32>().into_iter().enumerate().map(part).collect();
    Ok(Matrix { name: name.into(), rows, cols, format: WeightFormat::Nvfp4, parts })
}
