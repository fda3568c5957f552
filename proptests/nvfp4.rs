//! The `nvfp4` kernels: every code under every scale, and quantisation, bit for bit what `crate::format` gives.

use std::sync::Arc;

use flashlane::cuda::{Backend, DeviceBuffer, Fp4Kind, dequantize_bf16, dequantize_e4m3, quantize_bf16};
use flashlane::format::{e4m3, mxfp4, nvfp4};
use half::bf16;

use crate::support::Draw;

fn backends() -> Vec<Arc<dyn Backend>> {
    let all = crate::support::cuda::gpu().into_iter();
    #[cfg(feature = "emulator")]
    let all = all.chain([Arc::new(flashlane::cuda::Emulator::new(3)) as Arc<dyn Backend>]);
    all.collect()
}

/// 32 elements for each scale byte: all sixteen codes twice.
fn all_pairs(scale_bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let codes: Vec<u8> =
        (0..256).flat_map(|_| (0..16u8).map(|i| ((2 * i) % 16) | (((2 * i + 1) % 16) << 4))).collect();
    let scales = (0..=255u8).flat_map(|s| vec![s; scale_bytes]).collect();
    (codes, scales)
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn check_dequantize(kind: Fp4Kind, codes: &[u8], scales: &[u8], want: &[f32]) {
    for backend in backends() {
        let [codes, scales] = [codes, scales].map(|b| DeviceBuffer::from_bytes(&backend, b).unwrap());
        let wide = DeviceBuffer::new(&backend, 2 * want.len()).unwrap();
        dequantize_bf16(&backend, kind, &codes, &scales, &wide).unwrap();
        let mut found = vec![bf16::ZERO; want.len()];
        wide.download(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        for (i, (f, w)) in found.iter().zip(want).enumerate() {
            assert!(same(f.to_f32(), bf16::from_f32(*w).to_f32()), "{}: {i}: {f} {w}", backend.name());
        }
        let (narrow, out_scale) = (DeviceBuffer::new(&backend, want.len()).unwrap(), 0.25);
        dequantize_e4m3(&backend, kind, &codes, &scales, out_scale, &narrow).unwrap();
        let mut found = vec![0; want.len()];
        narrow.download(0, &mut found).unwrap();
        for (i, (f, w)) in found.iter().zip(want).enumerate() {
            assert_eq!(*f, e4m3::encode(w * out_scale), "{}: {i}: {w}", backend.name());
        }
    }
}

#[test]
fn every_code_under_every_scale_is_exact() {
    let (codes, scales) = all_pairs(2);
    for scale2 in [1.0, 0.0037, 2f32.powi(-8)] {
        let mut want = vec![0.0; 2 * codes.len()];
        nvfp4::decode_into(&codes, &scales, scale2, &mut want);
        check_dequantize(Fp4Kind::Nvfp4 { scale2 }, &codes, &scales, &want);
    }
    let (codes, scales) = all_pairs(1);
    let mut want = vec![0.0; 2 * codes.len()];
    mxfp4::decode_into(&codes, &scales, &mut want);
    check_dequantize(Fp4Kind::Mxfp4, &codes, &scales, &want);
}

#[test]
fn quantising_gives_the_same_bytes() {
    let mut draw = Draw::new(11);
    let mut values: Vec<f32> = [1e-30, 1e-3, 1.0, 300.0].iter().flat_map(|&s| draw.exact(512, s)).collect();
    values.extend([0.0; 32]);
    // Ties: midpoints between codes at scale one.
    values.extend((0..32).map(|i| [6.0, 0.25, 0.75, 1.25, -1.75, 2.5, 3.5, 5.0][i % 8]));
    // Values of any size, in blocks of any and of one size.
    let any = std::iter::repeat_with(|| bf16::from_bits(draw.bits() as u16)).filter(|v| v.is_finite());
    values.extend(any.take(4096).map(bf16::to_f32));
    for exponent in (0..254u16).flat_map(|e| [e; 32]) {
        let mantissa_and_sign = draw.bits() as u16 & 0x807f;
        values.push(bf16::from_bits(mantissa_and_sign | exponent << 7).to_f32());
    }
    check_quantize(Fp4Kind::Nvfp4 { scale2: nvfp4::scale2_for(300.0) }, &values);
    check_quantize(Fp4Kind::Mxfp4, &values);
}

/// Values halfway between two codes at their block's scale, which a product with its reciprocal would put on either side.
#[test]
fn ties_fall_as_a_division_has_them() {
    for scale2 in [1.0, 3.0, 5.0, 7.0].map(|k| k / 8.0) {
        let mut values = Vec::new();
        for scale in (0x38..0x40).map(|code| e4m3::decode(code) * scale2) {
            let halfway = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(|v| v * scale);
            let block: Vec<f32> =
                [6.0 * scale, 0.0].into_iter().chain(halfway.iter().flat_map(|&v| [v, -v])).collect();
            if block.iter().all(|&v| bf16::from_f32(v).to_f32() == v) {
                values.extend(block.repeat(2));
            }
        }
        assert!(values.len() >= 2 * 32, "{scale2}");
        check_quantize(Fp4Kind::Nvfp4 { scale2 }, &values);
    }
}

fn check_quantize(kind: Fp4Kind, values: &[f32]) {
    let (codes, scales) = match kind {
        Fp4Kind::Nvfp4 { scale2 } => {
            let blocks = nvfp4::quantize(values, scale2).unwrap();
            (blocks.codes, blocks.scales)
        }
        Fp4Kind::Mxfp4 => mxfp4::quantize(values).unwrap(),
    };
    let bits: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
    for backend in backends() {
        let x = DeviceBuffer::from_bytes(&backend, bytemuck::cast_slice(&bits)).unwrap();
        let [c, s] = [&codes, &scales].map(|b| DeviceBuffer::new(&backend, b.len()).unwrap());
        quantize_bf16(&backend, kind, &x, &c, &s).unwrap();
        for (buffer, want) in [(c, &codes), (s, &scales)] {
            let mut found = vec![0; want.len()];
            buffer.download(0, &mut found).unwrap();
            assert_eq!(&found, want, "{} {kind:?}", backend.name());
        }
    }
}
