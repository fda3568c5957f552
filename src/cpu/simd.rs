//! Sixteen f32 lanes on whatever the processor has, with one reduction order.
//!
//! A kernel is written once, over `Lanes`, and compiled for AVX-512, for AVX2 with FMA, and for neither. All three do the
//! same operations on the same sixteen lanes (AVX2 keeps them in two registers, the portable form in an array), every
//! product is added with one rounding, and lanes are summed by one fixed tree. So the instruction set changes the speed of
//! a sum, never its bits. This is the only file of the CPU path with `unsafe`: calls of functions that need an instruction
//! set, each behind a token that exists only where the processor has it.

use std::sync::OnceLock;

/// Lanes of every reduction.
pub const LANES: usize = 16;

/// Operations on sixteen lanes. Implementors are tokens: having one proves that the processor has the instructions.
pub(crate) trait Lanes: Copy {
    type V: Copy;
    /// Rows of either side in the largest tile of dot products that stays in registers.
    const TILE: usize;
    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Lane `l` with `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
    fn sum(self, v: Self::V) -> f32;
}

/// A piece of work that can be compiled for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, or it is compiled without the instructions.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Defines a function `name(simd, arguments)` whose body is compiled for each instruction set.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$lt:lifetime>($lanes:ident; $($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        $(#[$meta])*
        $vis fn $name<$lt>(simd: $crate::cpu::simd::Simd, $($arg: $ty),*) -> $ret {
            struct Work<$lt> { $($arg: $ty),* }
            impl<$lt> $crate::cpu::simd::Kernel for Work<$lt> {
                type Output = $ret;
                #[inline(always)]
                fn run<L: $crate::cpu::simd::Lanes>(self, $lanes: L) -> $ret {
                    let Self { $($arg),* } = self;
                    $body
                }
            }
            simd.run(Work { $($arg),* })
        }
    };
}
pub(crate) use kernel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd(Level);

impl Simd {
    /// The widest of this processor.
    #[must_use]
    pub fn detect() -> Self {
        static WIDEST: OnceLock<Simd> = OnceLock::new();
        *WIDEST.get_or_init(|| *Self::available().last().unwrap_or(&Self(Level::Portable)))
    }

    /// All that this processor has, narrowest first. They compute the same bits.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self(Level::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx2() {
                all.push(Self(Level::Avx2));
            }
            if has_avx512() {
                all.push(Self(Level::Avx512));
            }
        }
        all
    }

    /// For people: `cpu-avx512`, `cpu-avx2`, `cpu-portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "cpu-portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "cpu-avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "cpu-avx512",
        }
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Level::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this level comes only from `available`, which has found avx2 and fma.
            Level::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this level comes only from `available`, which has found all that `run_avx512` enables.
            Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// No assumption about the processor.
#[derive(Clone, Copy)]
struct Portable;

impl Lanes for Portable {
    type V = [f32; LANES];
    const TILE: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|l| a[l].mul_add(b[l], c[l]))
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let v: [f32; 8] = std::array::from_fn(|l| v[l] + v[l + 8]);
        let v: [f32; 4] = std::array::from_fn(|l| v[l] + v[l + 4]);
        (v[0] + v[2]) + (v[1] + v[3])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Kernel, LANES, Lanes};

    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx2(()))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx512(()))
    }

    type Pair = (__m256, __m256);

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn splat_256(value: f32) -> Pair {
        (_mm256_set1_ps(value), _mm256_set1_ps(value))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn fma_256(a: Pair, b: Pair, c: Pair) -> Pair {
        (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn sum_256(v: Pair) -> f32 {
        let v = _mm256_add_ps(v.0, v.1);
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn splat_512(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn fma_512(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
    fn sum_512(v: __m512) -> f32 {
        sum_256((_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
    }

    impl Lanes for Avx2 {
        type V = Pair;
        const TILE: usize = 2;

        #[inline(always)]
        fn splat(self, value: f32) -> Pair {
            // SAFETY: `run_avx2` alone makes this token, so avx2 and fma are there.
            unsafe { splat_256(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Pair {
            bytemuck::cast::<[f32; LANES], [__m256; 2]>(*from).into()
        }

        #[inline(always)]
        fn store(self, v: Pair, to: &mut [f32; LANES]) {
            *to = bytemuck::cast::<[__m256; 2], [f32; LANES]>(v.into());
        }

        #[inline(always)]
        fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
            // SAFETY: as in `splat`.
            unsafe { fma_256(a, b, c) }
        }

        #[inline(always)]
        fn sum(self, v: Pair) -> f32 {
            // SAFETY: as in `splat`.
            unsafe { sum_256(v) }
        }
    }

    impl Lanes for Avx512 {
        type V = __m512;
        const TILE: usize = 4;

        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            // SAFETY: `run_avx512` alone makes this token, so avx512f is there.
            unsafe { splat_512(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> __m512 {
            bytemuck::cast(*from)
        }

        #[inline(always)]
        fn store(self, v: __m512, to: &mut [f32; LANES]) {
            *to = bytemuck::cast(v);
        }

        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as in `splat`.
            unsafe { fma_512(a, b, c) }
        }

        #[inline(always)]
        fn sum(self, v: __m512) -> f32 {
            // SAFETY: as in `splat`, with avx512dq, avx2 and fma.
            unsafe { sum_512(v) }
        }
    }
}
