//! NVFP4 to bf16 on a stream and buffers of crate `cust`: `cargo run -p flashlane --features cust --example cust_interop`.
//!
//! Builds and starts without CUDA; it then says that there is no driver.

use std::error::Error;
use std::sync::Arc;

use cust::context::CurrentContext;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use flashlane::cuda::{Backend, Fp4Kind, Gpu, dequantize_bf16};
use flashlane::format::nvfp4;

const ELEMENTS: usize = 1 << 16;
const SCALE2: f32 = 0.25;

fn main() -> Result<(), Box<dyn Error>> {
    let _context = cust::quick_init().map_err(|error| error.to_string())?;
    let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None)?);

    // Two e2m1 codes a byte; an e4m3 scale for each 16 elements, here 1.0 and 1.5 by turns.
    let codes: Vec<u8> = (0..=255).cycle().take(ELEMENTS / 2).collect();
    let scales: Vec<u8> = [0x38, 0x3c].into_iter().cycle().take(ELEMENTS / 16).collect();
    let device_codes = Arc::new(DeviceBuffer::from_slice(&codes)?);
    let device_scales = Arc::new(DeviceBuffer::from_slice(&scales)?);
    let device_out = Arc::new(DeviceBuffer::<u16>::zeroed(ELEMENTS)?);
    // These went to the null stream, which a non-blocking stream does not wait for.
    CurrentContext::synchronize()?;

    let gpu = Arc::new(Gpu::on_stream(0, &stream)?);
    let (codes_in, scales_in) = (gpu.operand(&device_codes)?, gpu.operand(&device_scales)?);
    let out = gpu.operand(&device_out)?;
    let backend: Arc<dyn Backend> = gpu;
    dequantize_bf16(&backend, Fp4Kind::Nvfp4 { scale2: SCALE2 }, &codes_in, &scales_in, &out)?;
    stream.synchronize()?;

    let mut found = vec![0; ELEMENTS];
    device_out.copy_to(&mut found)?;
    let mut expected = vec![0.0; ELEMENTS];
    nvfp4::dequantize(&codes, &scales, SCALE2, &mut expected)?;
    let differ =
        expected.iter().zip(&found).filter(|(e, f)| half::bf16::from_f32(**e).to_bits() != **f).count();
    println!("{ELEMENTS} elements on the caller's stream, {differ} differ from the CPU's");
    if differ == 0 { Ok(()) } else { Err("the GPU and the CPU differ".into()) }
}
