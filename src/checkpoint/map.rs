//! Bytes of a checkpoint: a memory-mapped file, a vector, or static data, shared and sliced without copying.
//!
//! Holds the module's only `unsafe`: the memory map.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use super::CheckpointError;

enum Backing {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

impl Backing {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(vec) => vec,
            Self::Static(bytes) => bytes,
        }
    }
}

/// A range of shared, immutable bytes. Cloning and slicing copy no data.
#[derive(Clone)]
pub struct Span {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Span {
    fn whole(backing: Backing) -> Self {
        let range = 0..backing.bytes().len();
        Self { backing: Arc::new(backing), range }
    }

    /// Maps a file. Symbolic links are followed.
    pub(super) fn map(path: &Path) -> Result<Self, CheckpointError> {
        regular(path)?;
        let file = File::open(path).map_err(|e| CheckpointError::io(path, e))?;
        // SAFETY: the map is read-only and private to this process. Its one obligation is that nobody shortens or rewrites
        // the file while it is mapped; checkpoints are immutable by convention, and `quantize` writes new files only.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| CheckpointError::io(path, e))?;
        Ok(Self::whole(Backing::Mapped(map)))
    }

    /// A part of this span; `None` if it does not lie inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let (start, end) =
            (self.range.start.checked_add(range.start)?, self.range.start.checked_add(range.end)?);
        let inside = start <= end && end <= self.range.end;
        inside.then(|| Self { backing: Arc::clone(&self.backing), range: start..end })
    }

    /// A span of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::whole(Backing::Static(&[]))
    }
}

impl Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.backing.bytes()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Span {
    fn from(bytes: Vec<u8>) -> Self {
        Self::whole(Backing::Owned(bytes))
    }
}

impl From<&'static [u8]> for Span {
    fn from(bytes: &'static [u8]) -> Self {
        Self::whole(Backing::Static(bytes))
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Span({} bytes)", self.range.len())
    }
}

/// Before it is opened: opening a pipe would wait for its writer.
fn regular(path: &Path) -> Result<(), CheckpointError> {
    let metadata = std::fs::metadata(path).map_err(|e| CheckpointError::io(path, e))?;
    if metadata.is_file() {
        return Ok(());
    }
    let found = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
    Err(CheckpointError::file(&path.display().to_string(), format!("expected a file, found {found}")))
}

/// Reads a small file whole.
///
/// # Errors
/// [`CheckpointError`]: there is none, or it is no regular file.
pub fn read_file(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    regular(path)?;
    std::fs::read(path).map_err(|e| CheckpointError::io(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_stay_inside() {
        let span = Span::from((0..10).collect::<Vec<u8>>());
        let inner = span.slice(2..8).unwrap();
        assert_eq!(&*inner.slice(1..3).unwrap(), [3, 4]);
        assert!(inner.slice(0..7).is_none() && inner.slice(usize::MAX..usize::MAX).is_none());
        assert!(Span::empty().is_empty());
    }

    #[test]
    fn a_directory_is_not_mapped() {
        let dir = tempfile::tempdir().unwrap();
        for error in [Span::map(dir.path()).unwrap_err(), read_file(dir.path()).unwrap_err()] {
            assert!(error.to_string().ends_with("expected a file, found a directory"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_not_read_without_end() {
        let zeros = Path::new("/dev/zero");
        for error in [Span::map(zeros).unwrap_err(), read_file(zeros).unwrap_err()] {
            assert!(error.to_string().ends_with("found a pipe, socket or device"), "{error}");
        }
    }
}
