//! One kernel launch as data: what runs, over how many blocks, with which parameters.

use std::borrow::Cow;

use super::{CudaError, Kernel};

/// A struct that a kernel takes as its one parameter.
///
/// # Safety
/// Plain old data that the header of the kernel declares, without implicit padding.
pub(super) unsafe trait Params: Copy {}

/// What a kernel's twin does wrong, for known bugs that are forced to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not wait for what it reads.
    Unwaited,
    /// It lets its dependents begin, and only then takes its time.
    Slow,
}

fn twin(fault: Option<Fault>, name: &'static str) -> Cow<'static, str> {
    match fault {
        None => name.into(),
        Some(Fault::Unwaited) => format!("unwaited_{name}").into(),
        Some(Fault::Slow) => format!("slow_{name}").into(),
    }
}

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
    fault: Option<Fault>,
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
            fault: None,
        }
    }

    /// The parameter struct's bytes.
    pub(super) fn params(&self) -> *const std::ffi::c_void {
        self.params.as_ptr().cast()
    }

    /// The same launch of the kernel's twin with a fault in it.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`]: the kernel has no twins.
    pub(super) fn with(self, fault: Fault) -> Result<Self, CudaError> {
        match (fault, self.kernel.file()) {
            (_, "linear") | (Fault::Slow, "attention" | "attention_wide") => {
                Ok(Self { fault: Some(fault), ..self })
            }
            _ => {
                Err(CudaError::Unsupported { op: self.kernel.symbol(), what: "a kernel with a fault in it" })
            }
        }
    }

    /// The function's name in its module.
    #[must_use]
    pub fn symbol(&self) -> Cow<'static, str> {
        twin(self.fault, self.kernel.symbol())
    }

    /// The source file's stem.
    #[must_use]
    pub fn file(&self) -> Cow<'static, str> {
        twin(self.fault, self.kernel.file())
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
