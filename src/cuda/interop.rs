//! Our operations on a caller's `cust` stream and buffers, in the primary context that both crates share.
//!
//! [`Gpu::on_stream`] launches on the caller's stream, so work is ordered with what the caller puts there; [`Gpu::operand`] makes
//! a buffer of the caller's an operand of any op, through [`Bindings`](super::Bindings) or as a weight. Both hold a share of
//! what they use: it outlives them and is not freed by them while the caller has it. Order between streams is the caller's,
//! as it is in `cust`; so is a host copy, which must wait for the stream first.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use cust::memory::{DeviceBuffer as CustBuffer, DeviceCopy};
use cust::stream::Stream;

use super::driver::{failed, primary_context};
use super::{Backend, CudaError, DeviceBuffer, Gpu};

impl Gpu {
    /// A GPU whose launches go to a caller's stream of its primary context, which becomes current on the thread. Kernels are
    /// loaded anew for each, so open one for a stream and keep it.
    ///
    /// # Errors
    /// [`CudaError::ForeignStream`] for a stream of another context; else as [`open`](Self::open).
    pub fn on_stream(ordinal: usize, stream: &Arc<Stream>) -> Result<Self, CudaError> {
        let context = primary_context(ordinal)?;
        let raw: sys::CUstream = stream.as_inner().cast();
        let mut owner = std::ptr::null_mut();
        // SAFETY: the stream is valid as long as `stream`, and `owner` may be written.
        unsafe { sys::cuStreamGetCtx(raw, &raw mut owner) }.result().map_err(failed("cuStreamGetCtx"))?;
        if owner != context.cu_ctx() {
            return Err(CudaError::ForeignStream { ordinal });
        }
        // SAFETY: a stream of this context, kept alive by the share below; its order with other streams is the caller's.
        let borrowed = unsafe { context.wrap_borrowed_stream(raw) };
        let mut gpu = Self::with_stream(context, borrowed)?;
        gpu.caller = Some(Arc::clone(stream));
        Ok(gpu)
    }

    /// A caller's buffer as an operand, all of it. `T` takes any bytes, as kernels write what the op says.
    ///
    /// # Errors
    /// [`CudaError::ForeignBuffer`] for memory of another GPU, or [`CudaError::Driver`].
    pub fn operand<T>(self: &Arc<Self>, buffer: &Arc<CustBuffer<T>>) -> Result<DeviceBuffer, CudaError>
    where
        T: DeviceCopy + bytemuck::Pod + Send + Sync,
    {
        let address = buffer.as_device_ptr().as_raw();
        let bytes = buffer.len() * size_of::<T>();
        if bytes > 0 {
            self.check_home(address)?;
        }
        let backend: Arc<dyn Backend> = Arc::<Self>::clone(self);
        let owner: Arc<CustBuffer<T>> = Arc::clone(buffer);
        Ok(DeviceBuffer::shared(backend, address, bytes, owner))
    }

    fn check_home(&self, address: u64) -> Result<(), CudaError> {
        self.bind()?;
        let mut home: i32 = -1;
        let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: this attribute is an i32, and `home` may be written.
        unsafe { sys::cuPointerGetAttribute((&raw mut home).cast::<c_void>(), attribute, address) }
            .result()
            .map_err(failed("cuPointerGetAttribute"))?;
        let ordinal = self.context.ordinal();
        if usize::try_from(home) == Ok(ordinal) {
            Ok(())
        } else {
            Err(CudaError::ForeignBuffer { home, ordinal })
        }
    }
}

#[cfg(test)]
mod tests {
    use cust::memory::CopyDestination;
    use cust::stream::StreamFlags;

    use super::super::{Fp4Kind, dequantize_bf16, device_count, kernels_built};
    use super::*;
    use crate::format::nvfp4;

    /// Whether there is a GPU to test on; its absence fails where `FLASHLANE_GPU=required`.
    fn gpu_to_test() -> bool {
        let found = kernels_built() && device_count() > 0;
        let required = std::env::var("FLASHLANE_GPU").is_ok_and(|v| v == "required");
        assert!(found || !required, "FLASHLANE_GPU=required, and there are no kernels or no GPU");
        if !found {
            eprintln!("skipped: there are no kernels or no GPU");
        }
        found
    }

    #[test]
    fn dequantises_on_the_callers_stream_and_leaves_the_callers_buffers_alone() {
        if !gpu_to_test() {
            return;
        }
        let _context = cust::quick_init().unwrap();
        let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None).unwrap());
        let codes: Vec<u8> = (0..=255).cycle().take(2048).collect();
        let scales: Vec<u8> = (0..256).map(|i| i % 0x7f).map(|i: u16| i as u8).collect();
        let lend = |bytes: &[u8]| Arc::new(CustBuffer::from_slice(bytes).unwrap());
        let (device_codes, device_scales) = (lend(&codes), lend(&scales));
        let out = Arc::new(CustBuffer::from_slice(&[0x7fc1_u16; 4096]).unwrap());
        cust::context::CurrentContext::synchronize().unwrap();

        let gpu = Arc::new(Gpu::on_stream(0, &stream).unwrap());
        assert_eq!(gpu.stream().cu_stream(), stream.as_inner().cast());
        let operands = (
            gpu.operand(&device_codes).unwrap(),
            gpu.operand(&device_scales).unwrap(),
            gpu.operand(&out).unwrap(),
        );
        let backend: Arc<dyn Backend> = Arc::<Gpu>::clone(&gpu);
        let kind = Fp4Kind::Nvfp4 { scale2: 0.5 };
        dequantize_bf16(&backend, kind, &operands.0, &operands.1, &operands.2).unwrap();
        drop((operands, backend, gpu));
        stream.synchronize().unwrap();

        let mut expected = vec![0.0; 4096];
        nvfp4::dequantize(&codes, &scales, 0.5, &mut expected).unwrap();
        let expected: Vec<u16> = expected.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect();
        let mut found = vec![0; 4096];
        out.copy_to(&mut found).unwrap();
        assert_eq!(found, expected);
        let mut again = vec![0; 2048];
        device_codes.copy_to(&mut again).unwrap();
        assert_eq!(again, codes, "the caller's codes after our operands are gone");
    }

    #[cfg(feature = "emulator")]
    #[test]
    fn a_share_frees_nothing_but_itself() {
        let backend: Arc<dyn Backend> = Arc::new(super::super::Emulator::new(1));
        let owner = Arc::new(DeviceBuffer::from_bytes(&backend, &[7; 64]).unwrap());
        let address = owner.address();
        let share =
            DeviceBuffer::shared(Arc::clone(&backend), address, 64, Arc::<DeviceBuffer>::clone(&owner));
        assert_eq!(Arc::strong_count(&owner), 2, "the memory lives as long as the share");
        drop(share);
        assert_eq!(Arc::strong_count(&owner), 1);
        let other = DeviceBuffer::from_bytes(&backend, &[9; 64]).unwrap();
        let mut found = [0; 64];
        owner.download(0, &mut found).unwrap();
        assert_eq!((found, other.len()), ([7; 64], 64), "freed memory would be handed out again");
    }

    #[test]
    fn a_stream_of_another_context_is_refused() {
        if !gpu_to_test() {
            return;
        }
        use cust::context::legacy::{Context, ContextFlags};
        cust::init(cust::CudaFlags::empty()).unwrap();
        let device = cust::device::Device::get_device(0).unwrap();
        let _own = Context::create_and_push(ContextFlags::empty(), device).unwrap();
        let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None).unwrap());
        assert!(matches!(Gpu::on_stream(0, &stream), Err(CudaError::ForeignStream { ordinal: 0 })));
    }
}
