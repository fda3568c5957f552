//! The proof of captured graphs, on a driver made of paper: it captures what it is told, and then something else is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use flashlane::cuda::{
    Backend, Capture, CudaError, KernelCall, Launch, NodeKind, ReadEdge, ReadNode, Reading, Replay, RunMode,
    Script,
};
use flashlane::engine::{Engine, EngineConfig, GpuConfig};
use flashlane::step::NodeId;

use crate::engine::{SERVED, config, model};

/// Where addresses begin: as high as a driver's, so that no pair of dimensions in an argument looks like one.
const BASE: u64 = 0x7e00_0000_0000;

/// What is wrong with a reading: it is told whether the capture is the displaced one.
pub(crate) type Fault = fn(&mut Reading, bool);

/// A driver without a device: addresses that lead nowhere, and captures that hold what was launched.
#[derive(Debug)]
pub(crate) struct Paper {
    next: AtomicU64,
    captures: AtomicUsize,
    fault: Fault,
}

impl Paper {
    pub(crate) fn new(fault: Fault) -> Self {
        Self { next: AtomicU64::new(BASE), captures: AtomicUsize::new(0), fault }
    }
}

impl Backend for Paper {
    fn name(&self) -> &'static str {
        "paper"
    }

    fn multiprocessors(&self) -> usize {
        132
    }

    fn shared_memory(&self) -> usize {
        227 << 10
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        Ok(self.next.fetch_add(bytes.next_multiple_of(256) as u64, Ordering::Relaxed))
    }

    unsafe fn free(&self, _: u64, _: usize) {}

    unsafe fn upload(&self, _: u64, _: &[u8]) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn download(&self, _: u64, _: &mut [u8]) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn launch(&self, _: &Launch) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn capture(self: Arc<Self>, script: Script) -> Result<Box<dyn Capture>, CudaError> {
        let mut reading = captured(&script);
        // Of each step the second capture is displaced.
        let displaced = self.captures.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        (self.fault)(&mut reading, displaced);
        Ok(Box::new(Pages(reading)))
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        Ok(())
    }
}

/// What a driver makes of a script: launches with the attribute turn all edges of their node into programmatic ones.
fn captured(script: &Script) -> Reading {
    let mut last = vec![None; script.route.streams];
    let mut reading = Reading::default();
    for (at, (launch, stop)) in script.launches.iter().zip(&script.route.stops).enumerate() {
        let kind = u8::from(stop.programmatic);
        let from = last[stop.stream].into_iter().chain(stop.waits.iter().copied());
        reading.edges.extend(from.map(|from| ReadEdge { from, to: at, kind, from_port: kind }));
        last[stop.stream] = Some(at);
        let call = KernelCall {
            symbol: launch.symbol().into_owned(),
            grid: launch.grid,
            block: [launch.block, 1, 1],
            shared: launch.shared,
            words: launch.words().to_vec(),
        };
        let of = Some(NodeId(u32::try_from(at).unwrap()));
        reading.nodes.push(ReadNode { of, kind: NodeKind::Kernel(call) });
    }
    reading
}

#[derive(Debug)]
struct Pages(Reading);

impl Capture for Pages {
    fn read(&self) -> Result<Reading, CudaError> {
        Ok(self.0.clone())
    }

    fn instantiate(self: Box<Self>) -> Result<Box<dyn Replay>, CudaError> {
        Ok(self)
    }
}

impl Replay for Pages {
    unsafe fn replay(&self) -> Result<(), CudaError> {
        Ok(())
    }
}

fn start(fault: Fault, mode: RunMode) -> Result<(), String> {
    let config = EngineConfig { max_num_seqs: 2, ..config(SERVED, 2) };
    let gpu = GpuConfig { mode, ..GpuConfig::default() };
    Engine::on_gpu(&model(), config, Arc::new(Paper::new(fault)), &gpu).map(|_| ()).map_err(|e| e.to_string())
}

fn refusal(fault: Fault) -> String {
    start(fault, RunMode { captured: true, forked: true, programmatic: true }).unwrap_err()
}

#[test]
fn every_mode_of_the_step_is_certified() {
    for bits in 0..8 {
        let mode = RunMode { captured: bits & 1 > 0, forked: bits & 2 > 0, programmatic: bits & 4 > 0 };
        assert_eq!(start(|_, _| {}, mode), Ok(()), "{mode:?}");
    }
}

fn call(reading: &mut Reading, at: usize) -> &mut KernelCall {
    match &mut reading.nodes[at].kind {
        NodeKind::Kernel(call) => call,
        NodeKind::Other(kind) => panic!("{kind}"),
    }
}

/// A word that is a pointer.
fn pointer(reading: &mut Reading, at: usize) -> &mut u64 {
    call(reading, at).words.iter_mut().find(|w| **w & ((1 << 48) - 1) >= BASE).unwrap()
}

#[test]
fn an_edge_that_capture_lost_is_a_hazard() {
    let lost = |reading: &mut Reading, _| {
        let join =
            (0..reading.nodes.len()).find(|at| reading.edges.iter().filter(|e| e.to == *at).count() > 1);
        let join = join.unwrap();
        let edge = reading.edges.iter().rposition(|e| e.to == join).unwrap();
        reading.edges.remove(edge);
    };
    let said = refusal(lost);
    assert!(said.starts_with("the captured graph is not free of hazards"), "{said}");
}

#[test]
fn what_no_node_declares_is_refused() {
    let said =
        refusal(|reading, _| reading.nodes.push(ReadNode { of: None, kind: NodeKind::Other("a memset") }));
    assert_eq!(said, "the captured graph holds a memset, which no node of the step declares");
    let said = refusal(|reading, _| reading.nodes[3].kind = NodeKind::Other("a host function"));
    assert!(said.starts_with("the captured graph holds a host function in the place of "), "{said}");
    let said = refusal(|reading, _| {
        let twin = reading.nodes[2].clone();
        reading.nodes.push(twin);
    });
    assert!(said.ends_with("was captured 2 times, expected once"), "{said}");
    let said = refusal(|reading, _| {
        reading.nodes.remove(2);
        reading.edges.clear();
    });
    assert!(said.ends_with("was captured 0 times, expected once"), "{said}");
}

#[test]
fn edges_of_unknown_order_and_other_launches_are_refused() {
    let said = refusal(|reading, _| reading.edges[4].from_port = 2);
    assert!(said.ends_with("an edge of kind 1, port 2, whose order is not known"), "{said}");
    let said = refusal(|reading, _| call(reading, 1).grid[0] += 1);
    assert!(said.contains("its grid and block, as captured:"), "{said}");
    let said = refusal(|reading, _| call(reading, 1).shared += 1);
    assert!(said.contains("its dynamic shared memory, as captured:"), "{said}");
    let said = refusal(|reading, displaced| {
        if displaced {
            reading.edges.pop();
        }
    });
    assert!(said.contains("other edges when it is captured again"), "{said}");
}

/// G05 and the baked values of `hazards.md` 1.7: an argument that a replay would read stale.
#[test]
fn baked_arguments_are_refused() {
    let said = refusal(|reading, displaced| {
        if displaced {
            *call(reading, 1).words.last_mut().unwrap() ^= 1;
        }
    });
    assert!(said.contains("a host value is baked in"), "{said}");
    let said = refusal(|reading, displaced| {
        if displaced {
            *pointer(reading, 1) &= (1 << 48) - 1;
        }
    });
    assert!(said.contains("a stale address is baked in"), "{said}");
    // Both captures point at the same byte of a buffer that another node declares.
    let said = refusal(|reading, _| {
        let foreign = *pointer(reading, 9);
        *pointer(reading, 1) = foreign;
    });
    assert!(said.contains("its arguments, as captured:"), "{said}");
}
