//! Why no order here comes from cudarc's own tracking: it keeps one event for all the readers of a slice.

use cudarc::driver::CudaContext;

use crate::support::cuda::gpu;

const BYTES: usize = 1 << 20;
/// Copied often enough to keep a stream busy for milliseconds.
const BUSY: usize = 1 << 30;

/// A side stream reads x late; the main stream reads x, which takes the place of that reader, and then writes x: nothing
/// has it wait for the side stream.
#[test]
fn cudarc_orders_a_write_after_the_last_reader_alone() {
    if gpu().is_none() {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let (main, side) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let busy = side.alloc_zeros::<u8>(BUSY).unwrap();
    let mut sink = side.alloc_zeros::<u8>(BUSY).unwrap();
    let mut x = main.clone_htod(&vec![7u8; BYTES]).unwrap();
    let mut late = side.alloc_zeros::<u8>(BYTES).unwrap();
    let mut soon = main.alloc_zeros::<u8>(BYTES).unwrap();
    main.synchronize().unwrap();
    side.synchronize().unwrap();
    for _ in 0..16 {
        side.memcpy_dtod(&busy, &mut sink).unwrap();
    }
    side.memcpy_dtod(&x, &mut late).unwrap();
    main.memcpy_dtod(&x, &mut soon).unwrap();
    main.memset_zeros(&mut x).unwrap();
    main.synchronize().unwrap();
    let seen = side.clone_dtoh(&late).unwrap();
    assert!(main.clone_dtoh(&soon).unwrap().iter().all(|b| *b == 7));
    assert!(
        seen.contains(&0),
        "cudarc has the write wait for every reader now: say so in src/cuda/driver.rs"
    );
}
