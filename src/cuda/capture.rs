//! Scripts on a GPU: issued on its streams, or captured into a graph that can be read back.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result, sys};

use super::certify::{KernelCall, NodeKind, ReadEdge, ReadNode, Reading};
use super::driver::{Gpu, failed};
use super::{Capture, CudaError, Replay, Script, delay_launch};
use crate::step::NodeId;

/// Streams and events that one script uses.
struct Lanes<'a> {
    main: &'a Arc<CudaStream>,
    side: &'a [Arc<CudaStream>],
    /// By node; the last is recorded before the first.
    events: &'a [CudaEvent],
}

impl Lanes<'_> {
    fn stream(&self, number: usize) -> &Arc<CudaStream> {
        number.checked_sub(1).map_or(self.main, |side| &self.side[side])
    }
}

impl Gpu {
    /// # Safety
    /// As [`super::Backend::issue`].
    pub(super) unsafe fn issue_script(&self, script: &Script) -> Result<(), CudaError> {
        self.bind()?;
        let side = self.side(script.route.streams - 1, script.launches.len() + 1)?;
        let lanes = Lanes { main: &self.stream, side: &side.streams, events: &side.events };
        // SAFETY: the caller's.
        unsafe { self.walk(script, &lanes, &mut |_, _| Ok(())) }
    }

    /// # Safety
    /// As [`super::Backend::capture`].
    pub(super) unsafe fn capture_script(
        self: Arc<Self>,
        script: Script,
    ) -> Result<Box<dyn Capture>, CudaError> {
        self.bind()?;
        let delay = script.delays.values().next().map(|us| delay_launch(*us));
        for launch in script.launches.iter().chain(&delay) {
            if launch.is_empty() {
                return Err(CudaError::Unsupported {
                    op: launch.kernel.symbol(),
                    what: "a launch of no blocks",
                });
            }
            // Modules are loaded here: a capture may not.
            self.prepared(launch)?;
        }
        let events = (0..=script.launches.len()).map(|_| self.event()).collect::<Result<Vec<_>, _>>()?;
        let mut graph = Captured {
            graph: ptr::null_mut(),
            exec: ptr::null_mut(),
            tied: HashMap::new(),
            events,
            gpu: Arc::clone(&self),
        };
        // Not the stream of launches: what another engine on this GPU launches meanwhile must not land in this graph.
        let side = self.side(script.route.streams, 0)?;
        let Some((main, others)) = side.streams.split_first() else {
            return Err(CudaError::Unsupported { op: "capture", what: "a script on no stream" });
        };
        let lanes = Lanes { main, side: others, events: &graph.events };
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        main.begin_capture(mode).map_err(failed("cuStreamBeginCapture"))?;
        let mut tied = HashMap::new();
        // SAFETY: the caller's; nothing runs.
        let walked = unsafe {
            self.walk(&script, &lanes, &mut |at, stream| {
                tied.insert(newest(stream)? as usize, at);
                Ok(())
            })
        };
        // SAFETY: a capture was begun on this stream. Ended also after an error, or the stream would stay in it.
        let ended = unsafe { result::stream::end_capture(main.cu_stream()) };
        if let Ok(raw) = ended {
            graph.graph = raw;
        }
        walked?;
        ended.map_err(failed("cuStreamEndCapture"))?;
        graph.tied = tied;
        drop(side);
        Ok(Box::new(graph))
    }

    /// Launches every node on its stream; `after` sees each.
    ///
    /// # Safety
    /// As [`super::Backend::launch`], for every launch.
    unsafe fn walk(
        &self,
        script: &Script,
        lanes: &Lanes<'_>,
        after: &mut dyn FnMut(usize, &CudaStream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let wait = |stream: &CudaStream, event| stream.wait(event).map_err(failed("cuStreamWaitEvent"));
        let record =
            |event: &CudaEvent, stream: &CudaStream| event.record(stream).map_err(failed("cuEventRecord"));
        let route = &script.route;
        let start = &lanes.events[route.stops.len()];
        if route.stops.iter().any(|s| s.starts) {
            record(start, lanes.main)?;
        }
        for (at, (launch, stop)) in script.launches.iter().zip(&route.stops).enumerate() {
            let stream = lanes.stream(stop.stream);
            if stop.starts {
                wait(stream, start)?;
            }
            stop.waits.iter().try_for_each(|&from| wait(stream, &lanes.events[from]))?;
            if let Some(&us) = script.delays.get(&at) {
                // SAFETY: it touches no memory.
                unsafe { self.launch_on(&delay_launch(us), stream, false)? };
            }
            // SAFETY: the caller's; the stream is this GPU's.
            unsafe { self.launch_on(launch, stream, stop.programmatic)? };
            after(at, stream)?;
            if stop.records {
                record(&lanes.events[at], stream)?;
            }
        }
        route.ends.iter().try_for_each(|&end| wait(lanes.main, &lanes.events[end]))
    }
}

/// The node that a capturing stream was given last.
fn newest(stream: &CudaStream) -> Result<sys::CUgraphNode, CudaError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges, mut count) = (ptr::null(), ptr::null(), 0usize);
    // SAFETY: every pointer is null where that is allowed, or to a local.
    let asked = unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.cu_stream(),
            &raw mut status,
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut nodes,
            &raw mut edges,
            &raw mut count,
        )
    };
    asked.result().map_err(failed("cuStreamGetCaptureInfo"))?;
    if count != 1 || nodes.is_null() {
        let message = format!("a launch left the capture with {count} newest nodes, expected 1");
        return Err(CudaError::Driver { call: "cuStreamGetCaptureInfo", message });
    }
    // SAFETY: the driver's array of `count` nodes, valid until the next call on the stream.
    Ok(unsafe { *nodes })
}

/// A captured graph, executable or not yet, and what it needs to live.
#[derive(Debug)]
struct Captured {
    exec: sys::CUgraphExec,
    graph: sys::CUgraph,
    /// The step's node behind each node, by address.
    tied: HashMap<usize, usize>,
    events: Vec<CudaEvent>,
    /// Keeps modules and streams.
    gpu: Arc<Gpu>,
}

// SAFETY: graph handles are keys into the driver, used with the context current; the struct has one owner at a time.
unsafe impl Send for Captured {}

impl Drop for Captured {
    fn drop(&mut self) {
        if self.gpu.bind().is_err() {
            return;
        }
        if !self.exec.is_null() {
            // SAFETY: made by `instantiate`, destroyed once; the driver waits for a replay under way.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
        if !self.graph.is_null() {
            // SAFETY: made by the capture, destroyed once.
            let _ = unsafe { result::graph::destroy(self.graph) };
        }
    }
}

impl Capture for Captured {
    fn read(&self) -> Result<Reading, CudaError> {
        self.gpu.bind()?;
        let raw = self.nodes()?;
        let node = |raw: &sys::CUgraphNode| {
            let of = self.tied.get(&(*raw as usize)).map(|at| NodeId(u32::try_from(*at).unwrap_or(u32::MAX)));
            Ok(ReadNode { of, kind: kind(*raw)? })
        };
        let nodes = raw.iter().map(node).collect::<Result<_, CudaError>>()?;
        Ok(Reading { nodes, edges: self.edges(&raw)? })
    }

    fn instantiate(mut self: Box<Self>) -> Result<Box<dyn Replay>, CudaError> {
        self.gpu.bind()?;
        // SAFETY: the graph is alive and `exec` is a place for one handle.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut self.exec, self.graph, 0) };
        made.result().map_err(failed("cuGraphInstantiate"))?;
        // SAFETY: made just now, on a stream of its context.
        let sent = unsafe { result::graph::upload(self.exec, self.gpu.stream.cu_stream()) };
        sent.map_err(failed("cuGraphUpload"))?;
        Ok(self)
    }
}

impl Replay for Captured {
    unsafe fn replay(&self) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: instantiated; the caller's for the addresses in it.
        unsafe { result::graph::launch(self.exec, self.gpu.stream.cu_stream()) }
            .map_err(failed("cuGraphLaunch"))
    }
}

impl Captured {
    fn nodes(&self) -> Result<Vec<sys::CUgraphNode>, CudaError> {
        let mut count = 0;
        // SAFETY: a null array asks for the count.
        let asked = unsafe { sys::cuGraphGetNodes(self.graph, ptr::null_mut(), &raw mut count) };
        asked.result().map_err(failed("cuGraphGetNodes"))?;
        let mut nodes = vec![ptr::null_mut(); count];
        // SAFETY: an array of `count` nodes.
        let asked = unsafe { sys::cuGraphGetNodes(self.graph, nodes.as_mut_ptr(), &raw mut count) };
        asked.result().map_err(failed("cuGraphGetNodes"))?;
        Ok(nodes)
    }

    fn edges(&self, nodes: &[sys::CUgraphNode]) -> Result<Vec<ReadEdge>, CudaError> {
        let mut count = 0;
        // SAFETY: null arrays ask for the count.
        let asked = unsafe {
            sys::cuGraphGetEdges_v2(
                self.graph,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                &raw mut count,
            )
        };
        asked.result().map_err(failed("cuGraphGetEdges"))?;
        if count == 0 {
            // The driver refuses arrays of no elements.
            return Ok(Vec::new());
        }
        let (mut from, mut to) = (vec![ptr::null_mut(); count], vec![ptr::null_mut(); count]);
        let none = sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
        let mut data = vec![none; count];
        // SAFETY: three arrays of `count`.
        let asked = unsafe {
            sys::cuGraphGetEdges_v2(
                self.graph,
                from.as_mut_ptr(),
                to.as_mut_ptr(),
                data.as_mut_ptr(),
                &raw mut count,
            )
        };
        asked.result().map_err(failed("cuGraphGetEdges"))?;
        let places: HashMap<usize, usize> =
            nodes.iter().enumerate().map(|(at, n)| (*n as usize, at)).collect();
        let place = |node: sys::CUgraphNode| places.get(&(node as usize)).copied().unwrap_or(usize::MAX);
        let edge = |((from, to), data): ((&_, &_), &sys::CUgraphEdgeData)| ReadEdge {
            from: place(*from),
            to: place(*to),
            kind: data.type_,
            from_port: data.from_port,
        };
        Ok(from.iter().zip(&to).zip(&data).map(edge).collect())
    }
}

fn kind(node: sys::CUgraphNode) -> Result<NodeKind, CudaError> {
    use sys::CUgraphNodeType_enum as Type;
    let mut kind = Type::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: a node of a graph that is alive, and a local.
    let asked = unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) };
    asked.result().map_err(failed("cuGraphNodeGetType"))?;
    Ok(match kind {
        Type::CU_GRAPH_NODE_TYPE_KERNEL => NodeKind::Kernel(call(node)?),
        Type::CU_GRAPH_NODE_TYPE_MEMCPY => NodeKind::Other("a copy"),
        Type::CU_GRAPH_NODE_TYPE_MEMSET => NodeKind::Other("a memset"),
        Type::CU_GRAPH_NODE_TYPE_HOST => NodeKind::Other("a host function"),
        Type::CU_GRAPH_NODE_TYPE_GRAPH => NodeKind::Other("a child graph"),
        Type::CU_GRAPH_NODE_TYPE_MEM_ALLOC => NodeKind::Other("an allocation"),
        Type::CU_GRAPH_NODE_TYPE_MEM_FREE => NodeKind::Other("a release of memory"),
        _ => NodeKind::Other("a node of another kind"),
    })
}

fn call(node: sys::CUgraphNode) -> Result<KernelCall, CudaError> {
    let mut params = std::mem::MaybeUninit::<sys::CUDA_KERNEL_NODE_PARAMS>::zeroed();
    // SAFETY: a kernel node and a place for its parameters.
    let asked = unsafe { sys::cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()) };
    asked.result().map_err(failed("cuGraphKernelNodeGetParams"))?;
    // SAFETY: zeroed, and filled by the driver: integers and pointers.
    let params = unsafe { params.assume_init() };
    Ok(KernelCall {
        symbol: symbol(params.func)?,
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared: params.sharedMemBytes,
        words: words(&params)?,
    })
}

fn symbol(function: sys::CUfunction) -> Result<String, CudaError> {
    let mut name: *const c_char = ptr::null();
    // SAFETY: a function that the driver gave, and a local.
    let asked = unsafe { sys::cuFuncGetName(&raw mut name, function) };
    asked.result().map_err(failed("cuFuncGetName"))?;
    // SAFETY: the driver's string, valid as long as the module.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// The bytes of a kernel's one parameter.
fn words(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Result<Vec<u64>, CudaError> {
    let (mut offset, mut size) = (0, 0);
    // SAFETY: a function that the driver gave, and locals.
    let asked = unsafe { sys::cuFuncGetParamInfo(params.func, 0, &raw mut offset, &raw mut size) };
    asked.result().map_err(failed("cuFuncGetParamInfo"))?;
    let mut words = vec![0u64; size.div_ceil(8)];
    if params.kernelParams.is_null() {
        let message = "a kernel node without its parameters".to_owned();
        return Err(CudaError::Driver { call: "cuGraphKernelNodeGetParams", message });
    }
    // SAFETY: an array with a pointer to each parameter, of which there is one.
    let first = unsafe { *params.kernelParams };
    // SAFETY: `size` bytes there, and at least as many here.
    unsafe { ptr::copy_nonoverlapping(first.cast::<u8>(), words.as_mut_ptr().cast::<u8>(), size) };
    Ok(words)
}
