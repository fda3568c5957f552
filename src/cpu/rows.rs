//! Activations as f32: loaded from bf16 or f32, computed a task at a time, rounded once on the way out.

use std::borrow::Cow;
use std::cell::RefCell;

use half::bf16;
use rayon::prelude::*;

use super::simd::{Simd, kernel};

/// Below this many multiply-adds a task is not worth handing to another thread.
const TASK_WORK: usize = 200_000;

/// Whether work of so many multiply-adds, in so many tasks, is shared out.
pub(super) fn worth_sharing(work: usize, tasks: usize) -> bool {
    tasks > 1 && work >= 2 * TASK_WORK && rayon::current_num_threads() > 1
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Lends a buffer of this thread. Its contents are leftovers. Nested calls get buffers of their own.
pub(super) fn with_buffer<R>(f: impl FnOnce(&mut Vec<f32>) -> R) -> R {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    let result = f(&mut buffer);
    BUFFERS.with_borrow_mut(|all| all.push(buffer));
    result
}

/// Lends `len` elements of leftovers.
pub(super) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    with_buffer(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        f(&mut buffer[..len])
    })
}

/// Activations to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rows<'a> {
    Bf16(&'a [bf16]),
    F32(&'a [f32]),
}

kernel! {
    fn widen<'a>(_lanes; from: &'a [bf16], to: &'a mut [f32]) -> () {
        for (t, f) in to.iter_mut().zip(from) {
            *t = f32::from_bits(u32::from(f.to_bits()) << 16);
        }
    }
}

kernel! {
    fn narrow<'a>(_lanes; from: &'a [f32], to: &'a mut [bf16]) -> () {
        for (t, f) in to.iter_mut().zip(from) {
            *t = bf16::from_f32(*f);
        }
    }
}

impl<'a> Rows<'a> {
    /// Elements `range` as f32.
    pub(super) fn load(self, simd: Simd, range: std::ops::Range<usize>) -> Cow<'a, [f32]> {
        match self {
            Self::F32(all) => Cow::Borrowed(&all[range]),
            Self::Bf16(all) => {
                let mut out = vec![0.0; range.len()];
                widen(simd, &all[range], &mut out);
                Cow::Owned(out)
            }
        }
    }

    /// Copies as many elements as `out` holds, from `first` on.
    pub(super) fn copy_to(self, simd: Simd, first: usize, out: &mut [f32]) {
        match self {
            Self::F32(all) => out.copy_from_slice(&all[first..first + out.len()]),
            Self::Bf16(all) => widen(simd, &all[first..first + out.len()], out),
        }
    }
}

/// Activations to write.
#[derive(Debug)]
pub(super) enum RowsMut<'a> {
    Bf16(&'a mut [bf16]),
    F32(&'a mut [f32]),
}

impl RowsMut<'_> {
    /// Calls `f(task, elements)` for each piece of `len` elements, on several threads if `work` (multiply-adds of all tasks
    /// together) is worth it. `f` must set all elements: what it finds in them is left over.
    pub(super) fn fill(self, simd: Simd, len: usize, work: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        match self {
            Self::F32(all) => for_chunks(all, len, work, f),
            Self::Bf16(all) => for_chunks(all, len, work, |task, chunk: &mut [bf16]| {
                with_scratch(chunk.len(), |values| {
                    f(task, values);
                    narrow(simd, values, chunk);
                });
            }),
        }
    }
}

/// Calls `f(task, chunk)` for each chunk of `len` elements, on several threads if that is worth it.
pub(super) fn for_chunks<T: Send>(
    all: &mut [T],
    len: usize,
    work: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if len == 0 || all.is_empty() {
        return;
    }
    let tasks = all.len().div_ceil(len);
    if worth_sharing(work, tasks) {
        let together = (TASK_WORK * tasks / work.max(1)).max(1);
        all.par_chunks_mut(len).enumerate().with_min_len(together).for_each(|(task, chunk)| f(task, chunk));
    } else {
        all.chunks_mut(len).enumerate().for_each(|(task, chunk)| f(task, chunk));
    }
}
