//! The canary's hash on a device, so that no page moves to the host.

use std::sync::Arc;

use super::ffi::CanaryParams;
use super::launch::Params;
use super::{Backend, CudaError, DeviceBuffer, DeviceResident, Kernel, Launch};
use crate::instrument::{Span, Store, WORD};

// SAFETY: generated from the kernel's header; pointers and 8-byte fields without gaps.
unsafe impl Params for CanaryParams {}

/// Bytes of a span's description, and of its hash.
const SPAN: usize = 16;
const HASH: usize = 8;

/// Memory of the canary's own: spans, and their hashes.
#[derive(Debug, Default)]
pub struct Hasher(Option<(DeviceBuffer, DeviceBuffer)>);

impl Hasher {
    /// The hash of each span, as [`hash`](crate::instrument::hash) of its bytes; of one outside its store, nothing. One launch
    /// for each store.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn hashes(
        &mut self,
        backend: &Arc<dyn Backend>,
        resident: &DeviceResident,
        spans: &[Span],
    ) -> Result<Vec<u64>, CudaError> {
        if spans.is_empty() {
            return Ok(Vec::new());
        }
        let mut order: Vec<usize> = (0..spans.len()).collect();
        order.sort_by_key(|&at| spans[at].store);
        let described: Vec<[u64; 2]> = order.iter().map(|&at| describe(&spans[at])).collect();
        let (table, out) = self.room(backend, spans.len())?;
        table.upload(0, bytemuck::cast_slice(&described))?;
        let mut from = 0;
        for group in order.chunk_by(|&a, &b| spans[a].store == spans[b].store) {
            start(backend, resident, spans[group[0]].store, (table, out), from..from + group.len())?;
            from += group.len();
        }
        let mut sorted = vec![0u64; spans.len()];
        out.download(0, bytemuck::cast_slice_mut(&mut sorted))?;
        let mut hashes = vec![0; spans.len()];
        order.iter().zip(sorted).for_each(|(&at, hash)| hashes[at] = hash);
        Ok(hashes)
    }

    /// Room for so many spans; it only grows.
    fn room(
        &mut self,
        backend: &Arc<dyn Backend>,
        spans: usize,
    ) -> Result<(&DeviceBuffer, &DeviceBuffer), CudaError> {
        let enough = self.0.take().filter(|(_, out)| out.len() >= spans * HASH);
        let (table, out) = match enough {
            Some(room) => room,
            None => {
                let spans = spans.next_power_of_two();
                (DeviceBuffer::new(backend, spans * SPAN)?, DeviceBuffer::new(backend, spans * HASH)?)
            }
        };
        let room = self.0.insert((table, out));
        Ok((&room.0, &room.1))
    }
}

/// First word in the store; its place in the page and how many words there are. A span that is not of whole words becomes one
/// that is in no store.
fn describe(span: &Span) -> [u64; 2] {
    let words = u32::try_from(span.range.len() / WORD);
    let whole = span.range.start.is_multiple_of(WORD) && span.range.len().is_multiple_of(WORD);
    match words {
        Ok(words) if whole => {
            [(span.range.start / WORD) as u64, u64::from(span.first) << 32 | u64::from(words)]
        }
        _ => [u64::MAX, 1],
    }
}

fn start(
    backend: &Arc<dyn Backend>,
    resident: &DeviceResident,
    store: Store,
    (table, out): (&DeviceBuffer, &DeviceBuffer),
    spans: std::ops::Range<usize>,
) -> Result<(), CudaError> {
    let (address, bytes) = resident.store(store).map_or((0, 0), |b| (b.address(), b.len()));
    let params = CanaryParams {
        store: address as *const u32,
        spans: (table.address() + (spans.start * SPAN) as u64) as *const u64,
        out: (out.address() + (spans.start * HASH) as u64) as *mut u64,
        words: (bytes / WORD) as i64,
    };
    let launch = Launch::new(Kernel::Canary, [spans.len(), 1, 1], 256, 0, &params);
    // SAFETY: both tables have room for these spans, and the kernel reads of the store no word beyond its length; all three
    // live until `hashes` has waited for what this launches.
    unsafe { backend.launch(&launch) }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::cuda::{Emulator, Gpu, kernels_built};
    use crate::instrument::hash;
    use crate::step::{Bytes, PoolId, Random, Resident, StateId};

    fn random_bytes(random: &mut Random, len: usize) -> Bytes {
        let mut bytes = Bytes::zeroed(len);
        bytes.iter_mut().for_each(|b| *b = random.bits() as u8);
        bytes
    }

    /// The emulator, and the GPU if there is one.
    fn backends() -> Vec<Arc<dyn Backend>> {
        let mut all: Vec<Arc<dyn Backend>> = vec![Arc::new(Emulator::new(1))];
        let required = std::env::var("FLASHLANE_GPU").is_ok_and(|v| v == "required");
        match Gpu::open(0) {
            Ok(gpu) if kernels_built() => all.push(Arc::new(gpu)),
            found => assert!(!required, "FLASHLANE_GPU=required: {found:?}"),
        }
        all
    }

    /// Spans of every length around the block's, in any order, of several stores.
    #[test]
    fn the_device_hashes_as_the_host_does() {
        let mut random = Random::new(5);
        let host = Resident {
            pools: [37_440, 8192].map(|len| random_bytes(&mut random, len)).into(),
            states: vec![random_bytes(&mut random, 4096)],
        };
        for backend in backends() {
            let resident = DeviceResident::upload(&backend, &host).unwrap();
            let mut hasher = Hasher::default();
            for count in [1, 40, 7] {
                let spans: Vec<Span> = (0..count).map(|_| span(&mut random, &host)).collect();
                let expected: Vec<u64> =
                    spans.iter().map(|s| hash(&bytes(&host, s)[s.range.clone()], s.first)).collect();
                assert_eq!(
                    hasher.hashes(&backend, &resident, &spans).unwrap(),
                    expected,
                    "{}",
                    backend.name()
                );
            }
            assert!(hasher.hashes(&backend, &resident, &[]).unwrap().is_empty());
        }
    }

    fn bytes<'a>(host: &'a Resident, span: &Span) -> &'a Bytes {
        match span.store {
            Store::Pool(id) => &host.pools[id.0 as usize],
            Store::State(id) => &host.states[id.0 as usize],
        }
    }

    fn span(random: &mut Random, host: &Resident) -> Span {
        let stores = [Store::Pool(PoolId(0)), Store::Pool(PoolId(1)), Store::State(StateId(0))];
        let mut span = Span { store: stores[random.below(3)], range: 0..0, first: random.bits() as u32 >> 8 };
        let words = bytes(host, &span).len() / WORD;
        let start = random.below(words + 1);
        let longest = (words - start).min([1, 255, 256, 257, words][random.below(5)]);
        span.range = start * WORD..(start + random.below(longest + 1)) * WORD;
        span
    }

    /// A span outside its store, or in none, reads nothing.
    #[test]
    fn what_is_outside_is_not_read() {
        let host = Resident { pools: vec![Bytes::zeroed(64)], states: Vec::new() };
        let [pool, none] = [Store::Pool(PoolId(0)), Store::Pool(PoolId(3))];
        let spans =
            [(pool, 60..68), (pool, 64..68), (pool, 1 << 40..(1 << 40) + 4), (none, 0..4), (pool, 2..6)]
                .map(|(store, range)| Span { store, range, first: 9 });
        for backend in backends() {
            let resident = DeviceResident::upload(&backend, &host).unwrap();
            assert_eq!(Hasher::default().hashes(&backend, &resident, &spans).unwrap(), [0; 5]);
        }
    }
}
