//! Tensors by name, from and to a safetensors file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use safetensors::tensor::{SafeTensors, TensorView};

pub use safetensors::Dtype;

#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    pub fn new<E: bytemuck::NoUninit>(dtype: Dtype, shape: &[usize], data: &[E]) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes: bytemuck::cast_slice(data).to_vec() }
    }

    /// Elements, whatever the alignment of the bytes.
    pub fn elements<E: bytemuck::AnyBitPattern>(&self) -> Vec<E> {
        self.bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// Elements of an F32 or BF16 tensor.
    pub fn floats(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => self.elements::<half::bf16>().iter().map(|v| v.to_f32()).collect(),
            _ => self.elements(),
        }
    }
}

/// Reads every tensor of a file.
///
/// # Errors
/// The file cannot be read, or is no safetensors file.
pub fn read(path: &Path) -> anyhow::Result<Tensors> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = SafeTensors::deserialize(&bytes);
    let file = file.with_context(|| format!("{} is no safetensors file", path.display()))?;
    let owned = |(name, view): (String, TensorView<'_>)| {
        let (dtype, shape) = (view.dtype(), view.shape().to_vec());
        (name, Tensor { dtype, shape, bytes: view.data().to_vec() })
    };
    Ok(file.tensors().into_iter().map(owned).collect())
}

/// Writes tensors to a file, which is replaced.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, tensors: &Tensors) -> anyhow::Result<()> {
    let mut views = Vec::new();
    for (name, tensor) in tensors {
        match TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes) {
            Ok(view) => views.push((name, view)),
            Err(error) => bail!("tensor {name} cannot be written: {error}"),
        }
    }
    let bytes = safetensors::serialize(views, None)?;
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
