//! One kernel launch as data: what runs, over how many blocks, with which parameters.

use super::{CudaError, Kernel};

/// A struct that a kernel takes as its one parameter.
///
/// # Safety
/// Plain old data that the header of the kernel declares, without implicit padding.
pub(super) unsafe trait Params: Copy {}

/// A launch. Its parameters hold raw device addresses, so running it is unsafe; [`super::launch`] makes valid ones.
#[derive(Clone, Debug)]
pub struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    params: Vec<u64>,
    waits: bool,
}

impl Launch {
    pub(super) fn new<P: Params>(
        kernel: Kernel,
        grid: [usize; 3],
        block: u32,
        shared: usize,
        params: &P,
    ) -> Self {
        let mut words = vec![0u64; size_of::<P>().div_ceil(8)];
        // SAFETY: `P` is plain data without padding and `words` is at least as long.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(params).cast::<u8>(),
                words.as_mut_ptr().cast::<u8>(),
                size_of::<P>(),
            );
        }
        let grid = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Self {
            kernel,
            grid,
            block,
            shared: u32::try_from(shared).unwrap_or(u32::MAX),
            params: words,
            waits: true,
        }
    }

    /// The parameter struct's bytes.
    pub(super) fn params(&self) -> *const std::ffi::c_void {
        self.params.as_ptr().cast()
    }

    /// The same launch of a twin that does not wait for what it reads: a known bug.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`]: the kernel has no such twin.
    pub(super) fn without_wait(self) -> Result<Self, CudaError> {
        match self.kernel {
            Kernel::Linear8 | Kernel::Linear32 => Ok(Self { waits: false, ..self }),
            other => Err(CudaError::Unsupported { op: other.symbol(), what: "a kernel that does not wait" }),
        }
    }

    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// The function's name in its module.
    #[must_use]
    pub const fn symbol(&self) -> &'static str {
        match (self.waits, self.kernel) {
            (false, Kernel::Linear8) => "unwaited_linear_8",
            (false, _) => "unwaited_linear_32",
            (true, kernel) => kernel.symbol(),
        }
    }

    /// The source file's stem.
    #[must_use]
    pub const fn file(&self) -> &'static str {
        if self.waits { self.kernel.file() } else { "unwaited" }
    }

    /// The parameter struct's bytes, in words.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.params
    }

    /// No block at all: the op has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}
