//! The kernel sources on the CPU (`csrc/emu`): each CUDA thread a fiber, in an order drawn from a seed.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use super::{Backend, CudaError, Kernel, Launch};

type Entry = unsafe extern "C" fn(*const c_void);

unsafe extern "C" {
    fn flashlane_emu_launch(
        kernel: Entry,
        params: *const c_void,
        grid: *const u32,
        block: *const u32,
        shared: u32,
        seed: u64,
    ) -> i32;
}

macro_rules! entries {
    ($($variant:ident, $name:ident;)*) => {
        unsafe extern "C" { $(fn $name(params: *const c_void);)* }

        fn entry(kernel: Kernel) -> Entry {
            match kernel { $(Kernel::$variant => $name,)* }
        }
    };
}

entries! {
    Attention5, flashlane_emu_attention_5;
    Attention8, flashlane_emu_attention_8;
    AttentionWide, flashlane_emu_attention_wide;
    Canary, flashlane_emu_canary;
    CompressC4, flashlane_emu_compress_c4;
    CompressC128, flashlane_emu_compress_c128;
    Delay, flashlane_emu_delay;
    Embed, flashlane_emu_embed;
    ExpertsUp, flashlane_emu_experts_up;
    ExpertsDown, flashlane_emu_experts_down;
    ExpertsUpFp4, flashlane_emu_experts_up_fp4;
    ExpertsDownFp4, flashlane_emu_experts_down_fp4;
    Fill, flashlane_emu_fill;
    HyperPre, flashlane_emu_hyper_pre;
    HyperPreSplit, flashlane_emu_hyper_pre_split;
    HyperPost, flashlane_emu_hyper_post;
    HyperHead, flashlane_emu_hyper_head;
    IndexLogitsFast, flashlane_emu_index_logits_fast;
    IndexLogitsSimple, flashlane_emu_index_logits_simple;
    IndexQuery, flashlane_emu_index_query;
    IndexSelectFast2, flashlane_emu_index_select_fast_2;
    IndexSelectFast4, flashlane_emu_index_select_fast_4;
    IndexSelectFast8, flashlane_emu_index_select_fast_8;
    IndexSelectSimple, flashlane_emu_index_select_simple;
    IndexStore, flashlane_emu_index_store;
    Linear8, flashlane_emu_linear_8;
    Linear8Fp8, flashlane_emu_linear_8_fp8;
    Linear32, flashlane_emu_linear_32;
    Linear64, flashlane_emu_linear_64;
    Linear32Eighth, flashlane_emu_linear_32_eighth;
    Linear64Eighth, flashlane_emu_linear_64_eighth;
    Linear64Half, flashlane_emu_linear_64_half;
    Linear64Turns, flashlane_emu_linear_64_turns;
    Linear128, flashlane_emu_linear_128;
    Linear64Alone, flashlane_emu_linear_64_alone;
    Fp4ToBf16, flashlane_emu_nvfp4_to_bf16;
    Fp4ToE4m3, flashlane_emu_nvfp4_to_e4m3;
    Fp4Quantize, flashlane_emu_nvfp4_quantize;
    Query, flashlane_emu_query;
    RmsNorm, flashlane_emu_rmsnorm;
    RopeStore, flashlane_emu_rope_store;
    Router, flashlane_emu_router;
    Sample, flashlane_emu_sample;
    SampleCluster, flashlane_emu_sample_cluster;
    TopK, flashlane_emu_topk;
    TopKCluster, flashlane_emu_topk_cluster;
    TopKLong, flashlane_emu_topk_long;
}

/// The emulator has one block's state for the whole process.
static RUNNING: Mutex<()> = Mutex::new(());

unsafe extern "C" {
    fn flashlane_emu_planted(params: *const c_void);
    fn flashlane_emu_planted_sums(params: *const c_void);
}

/// What an emulator runs in place of `rmsnorm`, to show that it would be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The same without its barriers: some schedule gives another answer.
    NoBarriers,
    /// A kernel that puts its sums where a barrier is on which warps waited: an error.
    SumsOverBarrier,
}

/// A device on the CPU. Equal seeds give equal schedules.
#[derive(Debug)]
pub struct Emulator {
    seed: u64,
    planted: Option<Planted>,
    shared_memory: usize,
}

impl Emulator {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, planted: None, shared_memory: 227 << 10 }
    }

    /// One whose blocks have so many bytes of shared memory: operations choose their kernels by it.
    #[must_use]
    pub fn with_shared_memory(seed: u64, bytes: usize) -> Self {
        Self { shared_memory: bytes, ..Self::new(seed) }
    }

    /// One with a fault in `rmsnorm`.
    #[must_use]
    pub fn with_planted_fault(seed: u64, fault: Planted) -> Self {
        Self { planted: Some(fault), ..Self::new(seed) }
    }

    fn entry(&self, kernel: Kernel) -> Entry {
        match self.planted.filter(|_| kernel == Kernel::RmsNorm) {
            Some(Planted::NoBarriers) => flashlane_emu_planted,
            Some(Planted::SumsOverBarrier) => flashlane_emu_planted_sums,
            None => entry(kernel),
        }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), 256).ok()
}

impl Backend for Emulator {
    fn name(&self) -> &'static str {
        "emulator"
    }

    fn multiprocessors(&self) -> usize {
        2
    }

    fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        let refused =
            || CudaError::Driver { call: "allocate", message: format!("{bytes} bytes are too many") };
        let layout = layout(bytes).ok_or_else(refused)?;
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() { Err(refused()) } else { Ok(memory as u64) }
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: the caller's: allocated above with this size.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), CudaError> {
        if launch.is_empty() {
            return Ok(());
        }
        let _one = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let block = [launch.block, 1, 1];
        // SAFETY: the caller's: parameters that fit the kernel and valid addresses in them.
        let code = unsafe {
            flashlane_emu_launch(
                self.entry(launch.kernel),
                launch.params(),
                launch.grid.as_ptr(),
                block.as_ptr(),
                launch.shared,
                self.seed,
            )
        };
        let reason = match code {
            0 => return Ok(()),
            1 => "its threads wait for each other for ever",
            3 => "it writes over a barrier on which its warps wait",
            _ => "no device takes this launch",
        };
        Err(CudaError::Emulator { kernel: launch.kernel.symbol(), reason })
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        Ok(())
    }
}

macro_rules! host_math {
    ($($(#[$doc:meta])* $name:ident, $symbol:ident, $from:ty, $to:ty;)*) => {
        /// The element math of `csrc/common/hd.h`, as the kernels compile it.
        pub mod host {
            unsafe extern "C" { $(fn $symbol(x: $from) -> $to;)* }
            $($(#[$doc])* #[must_use] pub fn $name(x: $from) -> $to {
                // SAFETY: a pure function of its argument.
                unsafe { $symbol(x) }
            })*
        }
    };
}

host_math! {
    bf16_to_float, flashlane_host_bf16_to_float, u16, f32;
    float_to_bf16, flashlane_host_float_to_bf16, f32, u16;
    e4m3_to_float, flashlane_host_e4m3_to_float, u8, f32;
    float_to_e4m3, flashlane_host_float_to_e4m3, f32, u8;
    e2m1_to_float, flashlane_host_e2m1_to_float, u8, f32;
    float_to_e2m1, flashlane_host_float_to_e2m1, f32, u8;
    ue8m0_to_float, flashlane_host_ue8m0_to_float, u8, f32;
    ue8m0_reciprocal, flashlane_host_ue8m0_reciprocal, u8, f32;
    e4m3_tile_scale, flashlane_host_e4m3_tile_scale, f32, u8;
    e2m1_tile_scale, flashlane_host_e2m1_tile_scale, f32, u8;
}
