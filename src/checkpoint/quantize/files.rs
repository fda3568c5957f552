//! The new directory and its files.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;

use super::stored::Blob;
use crate::checkpoint::CheckpointError;

/// The directory being written; removed on drop unless it was published.
pub(super) struct Staging {
    pub(super) path: PathBuf,
    published: bool,
}

impl Staging {
    pub(super) fn new(output: &Path) -> Result<Self, CheckpointError> {
        let name = output.file_name().ok_or_else(|| {
            CheckpointError::Quantize(format!("{} does not end in a directory name", output.display()))
        })?;
        let hidden = format!(".{}.incomplete-{}", name.to_string_lossy(), std::process::id());
        let path = output.with_file_name(hidden);
        std::fs::create_dir(&path).map_err(|e| CheckpointError::io(&path, e))?;
        Ok(Self { path, published: false })
    }

    pub(super) fn publish(mut self, output: &Path) -> Result<(), CheckpointError> {
        std::fs::rename(&self.path, output).map_err(|e| CheckpointError::io(output, e))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // Best effort: a failure here must not hide the error that led to it.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

pub(super) fn write_shard(path: &Path, blobs: &[Blob]) -> Result<(), CheckpointError> {
    let fail =
        |e: safetensors::SafeTensorError| CheckpointError::file(&path.display().to_string(), e.to_string());
    let mut views = Vec::with_capacity(blobs.len());
    for b in blobs {
        views.push((&b.name, TensorView::new(b.dtype, b.shape.clone(), &b.data).map_err(fail)?));
    }
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let io = |e| CheckpointError::io(path, e);
    // The crate writes a private temporary file and renames it; give it the mode that any other new file has.
    let permissions = File::create(path).and_then(|f| f.metadata()).map_err(io)?.permissions();
    safetensors::serialize_to_file(views, Some(metadata), path).map_err(fail)?;
    std::fs::set_permissions(path, permissions).map_err(io)?;
    File::open(path).and_then(|f| f.sync_all()).map_err(io)
}

/// Tokenizer, generation settings and whatever else lies beside the weights; files only.
pub(super) fn copy_companions(input: &Path, output: &Path) -> Result<(), CheckpointError> {
    const REPLACED: [&str; 3] = ["config.json", "hf_quant_config.json", "model.safetensors.index.json"];
    for entry in std::fs::read_dir(input).map_err(|e| CheckpointError::io(input, e))? {
        let path = entry.map_err(|e| CheckpointError::io(input, e))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        let weights = name.ends_with(".safetensors");
        if !weights && !name.starts_with('.') && !REPLACED.contains(&name) && path.is_file() {
            std::fs::copy(&path, output.join(name)).map_err(|e| CheckpointError::io(&path, e))?;
        }
    }
    Ok(())
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    std::fs::write(path, bytes).map_err(|e| CheckpointError::io(path, e))
}
