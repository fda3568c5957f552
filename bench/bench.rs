//! What a benchmark is: an operation at a shape.

use crate::support::Case;

/// Where it is to run, which decides the shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Cpu,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no GPU without the feature"))]
    Gpu,
}

impl At {
    /// The shapes of one or the other.
    pub(crate) fn pick<T>(self, cpu: T, gpu: T) -> T {
        if self == Self::Cpu { cpu } else { gpu }
    }
}

pub(crate) struct Bench {
    /// The operation, or the kernel where it has several.
    pub(crate) kernel: &'static str,
    pub(crate) shape: String,
    /// Rows of the step.
    pub(crate) rows: usize,
    /// Bytes that the operation cannot avoid to move.
    pub(crate) bytes: usize,
    /// Multiplications and additions.
    pub(crate) flops: usize,
    /// With the readable kernel, where there are two.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a choice of GPUs"))]
    pub(crate) simple: bool,
    /// Launches of a graph, where it is not the bytes that they move that decide.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a choice of GPUs"))]
    pub(crate) launches: Option<usize>,
    /// A case of so many rows, with so many nodes over operands of their own. Its first row does not depend on either.
    build: Box<dyn Fn(usize, usize) -> Case>,
    first_row: Option<Box<dyn Fn() -> Case>>,
}

impl Bench {
    /// `node` appends one node over so many rows.
    pub(crate) fn new(
        kernel: &'static str,
        shape: String,
        rows: usize,
        node: impl Fn(&mut Case, usize) + 'static,
    ) -> Self {
        Self::over(kernel, shape, rows, move |rows, copies| {
            let mut case = Case::new();
            (0..copies).for_each(|_| node(&mut case, rows));
            case
        })
    }

    /// `build` makes a case of so many rows and nodes.
    pub(crate) fn over(
        kernel: &'static str,
        shape: String,
        rows: usize,
        build: impl Fn(usize, usize) -> Case + 'static,
    ) -> Self {
        Self {
            kernel,
            shape,
            rows,
            bytes: 0,
            flops: 0,
            simple: false,
            launches: None,
            build: Box::new(build),
            first_row: None,
        }
    }

    /// What one node cannot avoid: bytes to move, multiplications and additions.
    pub(crate) fn moves(self, bytes: usize, flops: usize) -> Self {
        Self { bytes, flops, ..self }
    }

    pub(crate) fn with_the_simple_kernel(self) -> Self {
        Self { simple: true, ..self }
    }

    /// With as many launches a graph as `tools/rivals` has of the same shape: what it takes to start a graph is shared by them.
    pub(crate) fn launched(self, launches: usize) -> Self {
        Self { launches: Some(launches), ..self }
    }

    /// `build` makes a smaller case of the first row, with the same buffers and outputs.
    pub(crate) fn with_first_row(self, build: impl Fn() -> Case + 'static) -> Self {
        Self { first_row: Some(Box::new(build)), ..self }
    }

    /// The case at its shape.
    pub(crate) fn case(&self, nodes: usize) -> Case {
        (self.build)(self.rows, nodes)
    }

    /// Its first row alone.
    pub(crate) fn first_row(&self) -> Case {
        self.first_row.as_ref().map_or_else(|| (self.build)(1, 1), |build| build())
    }
}
