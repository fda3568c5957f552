//! The engine on the CUDA path: the same tokens alone and in company, and the CPU's tokens but where rounding decides.

use std::sync::Arc;

use flashlane::checkpoint::Checkpoint;
use flashlane::cuda::{Backend, Options};
use flashlane::engine::{Engine, EngineConfig, Event, Generate, GenerateRequest, SamplingParams};
use flashlane::format::index_row::IndexFormat;
use flashlane::step::Numerics;

use crate::engine::{PROMPTS, SERVED, collect, config, model, request};
use crate::support::cuda::gpu;

fn engine(backend: &Arc<dyn Backend>, config: EngineConfig) -> Engine {
    Engine::on_gpu(&model(), config, Arc::clone(backend), Options::default()).unwrap()
}

fn tokens(engine: &Engine, seed: u64, prompt: usize) -> Vec<u32> {
    collect(engine.submit(request(seed, prompt, 9)).unwrap()).0
}

/// Promise 1 on the GPU: whatever the batch, the bucket and the row.
#[test]
fn tokens_are_the_same_alone_and_in_company_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    for index in [IndexFormat::Bf16, IndexFormat::Fp8, IndexFormat::Fp4] {
        let numerics = Numerics { index, ..SERVED };
        let alone = engine(&gpu, config(numerics, 1));
        let expected: Vec<_> =
            (0u64..).zip(PROMPTS).map(|(seed, prompt)| tokens(&alone, seed, prompt)).collect();
        for rows in [3, 12] {
            let engine = engine(&gpu, config(numerics, rows));
            let submit = |(seed, prompt): (u64, usize)| engine.submit(request(seed, prompt, 9)).unwrap();
            let handles: Vec<_> = (0u64..).zip(PROMPTS).map(submit).collect();
            let got: Vec<_> = handles.into_iter().map(|handle| collect(handle).0).collect();
            assert_eq!(got, expected, "{index:?}, {rows} rows");
        }
    }
}

/// Greedy tokens equal the CPU's up to the first place where the CPU's two best are nearer than bf16 noise in the logits.
fn agrees_with_the_cpu(backend: &Arc<dyn Backend>, checkpoint: &Checkpoint, sessions: u64, tokens: usize) {
    const NOISE: f32 = 0.15;
    let vocab = checkpoint.config.vocab_size;
    let config = EngineConfig { vocab, ..config(SERVED, 1) };
    let ours = Engine::on_gpu(checkpoint, config, Arc::clone(backend), Options::default()).unwrap();
    let theirs = Engine::on_cpu(checkpoint, config).unwrap();
    let mut equal = 0;
    for session in 0..sessions {
        let prompt = PROMPTS[usize::try_from(session).unwrap() % PROMPTS.len()];
        let sampling = SamplingParams { top_logprobs: Some(2), ..SamplingParams::default() };
        let request = GenerateRequest { sampling, ..request(2 * session, prompt, tokens) };
        let got = collect(ours.submit(request.clone()).unwrap()).0;
        let mut handle = theirs.submit(request).unwrap();
        let mut place = 0;
        loop {
            match handle.events.blocking_recv() {
                Some(Event::Token(token)) if token.id == got[place] => place += 1,
                Some(Event::Token(token)) => {
                    let top = token.logprobs.unwrap().top;
                    let gap = top[0].1 - top[1].1;
                    assert!(
                        gap < NOISE,
                        "session {session}, token {place}: the CPU prefers its own by {gap}"
                    );
                    break;
                }
                _ => break,
            }
        }
        equal += place;
    }
    let all = usize::try_from(sessions).unwrap() * tokens;
    eprintln!("{equal} of {all} tokens before the first near tie");
    assert!(2 * equal > all, "{equal} of {all}: a model that is all near ties tests nothing");
}

#[test]
fn a_gpu_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    agrees_with_the_cpu(&gpu, &model(), 24, 9);
}

/// The same path on the emulator: what a machine without a GPU can hold of it.
#[cfg(feature = "emulator")]
#[test]
fn the_emulator_agrees_with_the_cpu() {
    let emulator: Arc<dyn Backend> = Arc::new(flashlane::cuda::Emulator::new(1));
    agrees_with_the_cpu(&emulator, &model(), 2, 3);
}
