//! What crate `cust` links against: the driver's functions by name, found in libcuda at the first call instead of at start.
//!
//! `cust` declares them as symbols of a library that a machine without CUDA lacks. Here each is a jump through a slot. All
//! slots lead to [`first_call`] until one is used; that fills them, from libcuda or, where there is none, with functions that
//! return an error, and jumps on. So the linker is content with an empty `libcuda.a` (`cuda-shim/`), the binary starts
//! anywhere, and without a driver `cust::quick_init` is an error value. These are the functions that cust 0.3.2 calls: another
//! of `cust::sys` needs the real library in the link.

use std::arch::{global_asm, naked_asm};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 3;
const NOT_FOUND: c_int = 500;

macro_rules! driver_functions {
    ($($name:ident)*) => {
        /// The place of a function's slot.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        enum Function { $($name),* }

        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(global_asm!(
            concat!(".globl ", stringify!($name)),
            // Not for other libraries: a shared object built from this crate must not offer the driver's names.
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "lea r11, [rip + {slots} + {offset}]",
            "jmp [r11]",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            slots = sym SLOTS,
            offset = const size_of::<Slot>() * Function::$name as usize,
        );)*
    };
}

type Slot = AtomicPtr<c_void>;

static SLOTS: [Slot; NAMES.len()] = [const { Slot::new(first_call as *mut c_void) }; NAMES.len()];

driver_functions! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayDestroy cuCtxCreate_v2 cuCtxDestroy_v2
    cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetFlags cuCtxGetLimit
    cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuCtxPopCurrent_v2 cuCtxPushCurrent_v2
    cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetLimit cuCtxSetSharedMemConfig cuCtxSynchronize
    cuDestroyExternalMemory cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName
    cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxSetFlags_v2 cuDeviceTotalMem_v2 cuDriverGetVersion cuEventCreate cuEventDestroy_v2
    cuEventElapsedTime cuEventQuery cuEventRecord cuEventSynchronize cuExternalMemoryGetMappedBuffer
    cuFuncGetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuGetErrorString cuGraphAddKernelNode
    cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy cuGraphGetEdges cuGraphGetNodes
    cuGraphKernelNodeGetParams cuGraphNodeGetType cuImportExternalMemory cuInit cuLaunchHostFunc
    cuLaunchKernel cuLinkAddData_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuMemAdvise cuMemAllocAsync
    cuMemAllocHost_v2 cuMemAllocManaged cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost cuMemFree_v2
    cuMemGetInfo_v2 cuMemPrefetchAsync cuMemcpy2D_v2 cuMemcpyAtoH_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoA_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2
    cuMemsetD16Async cuMemsetD16_v2 cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async cuMemsetD8_v2
    cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleUnload
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxPotentialBlockSize cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamGetFlags
    cuStreamGetPriority cuStreamSynchronize cuStreamWaitEvent cuSurfObjectCreate cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
}

/// Calls `$fill` and then what the slot at `r11` leads to by now. Keeps the arguments in registers, as a procedure linkage table
/// does: none of these functions takes a float, and arguments on the stack stay where they are. Seven pushes align the stack.
macro_rules! fill_and_jump {
    ($fill:path) => {
        naked_asm!(
            "push r11",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "call {fill}",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "pop r11",
            "jmp [r11]",
            fill = sym $fill,
        )
    };
}

/// Where a slot, whose address is in `r11`, leads at first.
#[unsafe(naked)]
extern "C" fn first_call() {
    fill_and_jump!(fill)
}

/// Fills every slot, once; others wait for it.
extern "C" fn fill() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let driver = open();
        for (slot, name) in SLOTS.iter().zip(NAMES) {
            slot.store(target(driver.as_ref(), name), Ordering::Release);
        }
        // Never unloaded: the slots lead into it.
        std::mem::forget(driver);
    });
}

fn open() -> Option<Library> {
    ["libcuda.so.1", "libcuda.so"].iter().find_map(|name| {
        // SAFETY: loading the driver runs its initialisers, which are meant to run in any process.
        unsafe { Library::new(*name) }.ok()
    })
}

/// What a call of `name` runs.
fn target(driver: Option<&Library>, name: &str) -> *mut c_void {
    let Some(driver) = driver else {
        let describes = name == "cuGetErrorString";
        return if describes { describe as *mut c_void } else { no_driver as *mut c_void };
    };
    // SAFETY: the symbol is only taken as an address here; the caller of the slot knows its type from its name.
    let found = unsafe { driver.get::<*mut c_void>(name) };
    found.map_or(no_function as *mut c_void, |symbol| *symbol)
}

extern "C" fn no_driver() -> c_int {
    NOT_INITIALIZED
}

extern "C" fn no_function() -> c_int {
    NOT_FOUND
}

/// `cuGetErrorString` without a driver: `cust` asks for it to print an error, and printing would panic on a refusal.
///
/// # Safety
/// `text` may be written.
unsafe extern "C" fn describe(_: c_int, text: *mut *const c_char) -> c_int {
    const TEXT: &CStr = c"there is no CUDA driver on this machine: libcuda.so was not found";
    // SAFETY: the caller's.
    unsafe { text.write(TEXT.as_ptr()) };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys;
    use cust::error::CudaError;

    use super::*;

    #[test]
    fn without_a_driver_cust_gets_an_error_that_prints() {
        // SAFETY: opens and closes libcuda.
        if unsafe { sys::is_culib_present() } {
            eprintln!("skipped: this machine has a driver");
            return;
        }
        let error = cust::quick_init().map(drop).unwrap_err();
        assert_eq!(error, CudaError::NotInitialized);
        assert!(error.to_string().contains("no CUDA driver"), "{error}");
    }

    type Eight = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64) -> u64;

    extern "C" fn weighted_sum(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> u64 {
        [a, b, c, d, e, f, g, h].iter().zip(1..).map(|(value, weight)| value * weight).sum()
    }

    static FILLED: Slot = Slot::new(weighted_sum as *mut c_void);

    /// A driver function at its first call.
    #[unsafe(naked)]
    extern "C" fn first() {
        naked_asm!("lea r11, [rip + {slot}]", "jmp {then}", slot = sym FILLED, then = sym then)
    }

    #[unsafe(naked)]
    extern "C" fn then() {
        fill_and_jump!(spoil)
    }

    /// Leaves nothing in the registers that a call may change.
    #[unsafe(naked)]
    extern "C" fn spoil() {
        naked_asm!(
            "xor eax, eax",
            "xor edi, edi",
            "xor esi, esi",
            "xor edx, edx",
            "xor ecx, ecx",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r11d, r11d",
            "ret",
        )
    }

    #[test]
    fn a_first_call_keeps_every_argument() {
        // SAFETY: it jumps to `weighted_sum`, which has this type.
        let call: Eight = unsafe { std::mem::transmute::<extern "C" fn(), Eight>(first) };
        assert_eq!(call(1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000), 87_654_321);
    }

    #[test]
    fn the_first_call_fills_every_slot() {
        fill();
        for (slot, name) in SLOTS.iter().zip(NAMES) {
            assert_ne!(slot.load(Ordering::Acquire), first_call as *mut c_void, "{name}");
        }
    }
}
