//! `nvfp4`: blocks of a weight dequantised and quantised. No operation of a step, so each is one launch, cold.

use criterion::{Criterion, SamplingMode, Throughput};
use flashlane::cuda::{DeviceBuffer, Fp4Kind, dequantize_bf16, dequantize_e4m3, quantize_bf16};
use flashlane::format::nvfp4;
use half::bf16;

use crate::bench::Bench;
use crate::gpu::{Gpu, GpuTime};
use crate::support::Draw;

const ELEMENTS: usize = 32 << 20;
const SCALE2: f32 = 0.5;
const KIND: Fp4Kind = Fp4Kind::Nvfp4 { scale2: SCALE2 };

/// A matrix in each form.
struct Forms {
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    bf16: DeviceBuffer,
    e4m3: DeviceBuffer,
}

impl Forms {
    /// Quantised on the device, and what comes of that is right.
    fn new(gpu: &Gpu) -> Self {
        let mut draw = Draw::new(1);
        let values: Vec<f32> = (0..1 << 20).map(|_| bf16::from_f32(draw.uniform()).to_f32()).collect();
        let bits: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
        let buffer = |bytes| DeviceBuffer::new(&gpu.backend, bytes).expect("memory");
        let all = bytemuck::cast_slice(&bits).repeat(ELEMENTS >> 20);
        let forms = Self {
            codes: buffer(ELEMENTS / 2),
            scales: buffer(ELEMENTS / 16),
            bf16: DeviceBuffer::from_bytes(&gpu.backend, &all).expect("memory"),
            e4m3: buffer(ELEMENTS),
        };
        quantize_bf16(&gpu.backend, KIND, &forms.bf16, &forms.codes, &forms.scales).expect("a launch");
        forms.check(&values);
        forms
    }

    fn check(&self, values: &[f32]) {
        let want = nvfp4::quantize(values, SCALE2).expect("whole blocks");
        let (mut codes, mut scales) = (vec![0; want.codes.len()], vec![0; want.scales.len()]);
        self.codes.download(0, &mut codes).expect("a download");
        self.scales.download(0, &mut scales).expect("a download");
        assert!(codes == want.codes && scales == want.scales, "nvfp4: the device quantised otherwise");
    }
}

pub(crate) fn all(c: &mut Criterion<GpuTime>, gpu: &mut Gpu) {
    let blocks = ELEMENTS / 2 + ELEMENTS / 16;
    let mut forms = None;
    for (shape, bytes) in [("to Bf16", 2 * ELEMENTS), ("to Fp8", ELEMENTS), ("from Bf16", 2 * ELEMENTS)] {
        let bench = Bench::new("nvfp4", format!("{ELEMENTS} {shape}"), 1, |_, _| {}).moves(blocks + bytes, 0);
        let mut group = c.benchmark_group(bench.kernel);
        group.sampling_mode(SamplingMode::Flat);
        group.throughput(Throughput::BytesDecimal(bench.bytes as u64));
        let mut ran = false;
        group.bench_function(format!("{}/cold", bench.shape), |b| {
            ran = true;
            let Forms { codes, scales, bf16, e4m3 } = forms.get_or_insert_with(|| Forms::new(gpu));
            let backend = gpu.backend.clone();
            let launch = || match shape {
                "to Bf16" => dequantize_bf16(&backend, KIND, codes, scales, bf16),
                "to Fp8" => dequantize_e4m3(&backend, KIND, codes, scales, 1.0, e4m3),
                _ => quantize_bf16(&backend, KIND, bf16, codes, scales),
            };
            b.iter_custom(|n| (0..n).map(|_| gpu.cold(launch)).sum());
        });
        group.finish();
        if ran {
            gpu.report.case(&bench, 1);
        }
    }
}
