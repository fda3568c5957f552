//! Inputs of the model's steps: what the layout check lets through and what it refuses, and what nodes touch for them.

use std::collections::BTreeMap;

use flashlane::cache::{Caches, Owner, Sequence};
use flashlane::checkpoint::synthetic::tiny_config;
use flashlane::engine::inputs::Tokens::Given;
use flashlane::engine::{SamplingParams, inputs as engine};
use flashlane::format::index_row::IndexFormat;
use flashlane::model::{ModelStep, StepShape};
use flashlane::ops::{
    BLOCK_TOKENS, BufferId, Contents, Mode, Op, PAGE_ROWS, Part, Rows, Touched, Value, WINDOW,
};
use flashlane::step::{AnyOwner, Class, Graph, Layout, LayoutError, Memory, Owners, Plan, Random};

use crate::model_step::{SIZE, step};

const POSITIONS: usize = 1024;

/// A request in a step: its first position and its number of tokens there; none is a padded row.
pub(crate) type Segment = (usize, usize);

/// Fills a step's inputs as an engine would, with pages handed out in order from 1.
pub(crate) fn filled(step: &ModelStep, requests: &[Segment], plan: &Plan) -> Memory {
    let io = &step.io;
    let mut memory = Memory::new(&step.graph, plan);
    for value in [&io.position, &io.state_slot, &io.sample_rows, &io.sample_position] {
        memory.host_mut::<i32>(value).fill(-1);
    }
    for value in [&io.window_slot, &io.c4_slot, &io.c128_slot] {
        memory.host_mut::<i64>(value).fill(-1);
    }
    let mut next = (1, 1);
    for (r, &(start, tokens)) in requests.iter().enumerate().filter(|(_, (_, tokens))| *tokens > 0) {
        let end = start + tokens;
        for page in start.saturating_sub(WINDOW - 1) / PAGE_ROWS..end.div_ceil(PAGE_ROWS) {
            memory.host_mut::<i32>(&io.window_table)[r * io.window_width + page] = next.0;
            next.0 += 1;
        }
        for page in 0..end.div_ceil(BLOCK_TOKENS) {
            memory.host_mut::<i32>(&io.block_table)[r * io.block_width + page] = next.1;
            next.1 += 1;
        }
        memory.host_mut::<i32>(&io.state_slot)[r] = r as i32;
        memory.host_mut::<i32>(&io.sample_rows)[r] = (r * step.shape.per_request + tokens - 1) as i32;
        memory.host_mut::<i32>(&io.sample_position)[r] = end as i32;
        for (i, position) in (start..end).enumerate() {
            token(step, &mut memory, r, r * step.shape.per_request + i, position);
        }
    }
    memory
}

fn apart(step: &ModelStep, requests: &[Segment]) -> Memory {
    filled(step, requests, &Plan::unshared(&step.graph))
}

fn token(step: &ModelStep, memory: &mut Memory, request: usize, row: usize, position: usize) {
    let io = &step.io;
    memory.host_mut::<i32>(&io.position)[row] = position as i32;
    let window = memory.host::<i32>(&io.window_table)[request * io.window_width + position / PAGE_ROWS];
    memory.host_mut::<i64>(&io.window_slot)[row] = i64::from(window) * 64 + (position % PAGE_ROWS) as i64;
    let block = memory.host::<i32>(&io.block_table)[request * io.block_width + position / BLOCK_TOKENS];
    for (value, ratio) in [(&io.c4_slot, 4), (&io.c128_slot, 128)] {
        if (position + 1).is_multiple_of(ratio) {
            let rows = BLOCK_TOKENS / ratio;
            let slot = i64::from(block) * rows as i64 + (position / ratio % rows) as i64;
            memory.host_mut::<i64>(value)[row] = slot;
        }
    }
}

fn decode() -> ModelStep {
    step(&tiny_config(), IndexFormat::Fp8, StepShape::decode(4, POSITIONS))
}

fn prefill() -> ModelStep {
    step(&tiny_config(), IndexFormat::Fp4, StepShape::prefill(POSITIONS))
}

/// Decode rows with a few lengths, padding among them, and prefill blocks, the last of them short.
fn cases() -> Vec<(ModelStep, Vec<Segment>)> {
    let mut cases = Vec::new();
    let mut random = Random::new(11);
    for _ in 0..24 {
        let position = |random: &mut Random| (random.below(POSITIONS), usize::from(random.chance(85)));
        cases.push((decode(), (0..4).map(|_| position(&mut random)).collect()));
    }
    for special in [0, 2, 3, 127, 128, 255, 256, 259, 511, 512] {
        cases.push((decode(), vec![(special, 1), (special + 1, 1), (0, 0), (special + 4, 1)]));
    }
    for (block, tokens) in [(0, 256), (0, 1), (0, 131), (1, 256), (1, 3), (2, 200), (3, 256)] {
        cases.push((prefill(), vec![(block * BLOCK_TOKENS, tokens)]));
    }
    cases
}

#[test]
fn right_inputs_pass() {
    for (step, requests) in cases() {
        let layout = Layout::of(&step.graph).unwrap();
        assert_eq!(layout.check(&apart(&step, &requests), &AnyOwner), Ok(()), "{requests:?}");
    }
}

/// A wrong edit of inputs that are right for rows at 511, 300, padding and 127; what it is refused as.
fn refusal(edit: impl FnOnce(&ModelStep, &mut Memory)) -> LayoutError {
    let step = decode();
    let mut memory = apart(&step, &[(511, 1), (300, 1), (0, 0), (127, 1)]);
    let layout = Layout::of(&step.graph).unwrap();
    assert_eq!(layout.check(&memory, &AnyOwner), Ok(()));
    edit(&step, &mut memory);
    layout.check(&memory, &AnyOwner).unwrap_err()
}

#[test]
fn wrong_inputs_are_refused_in_words() {
    let position = refusal(|s, m| m.host_mut::<i32>(&s.io.position)[1] = 1024);
    assert_eq!(position.to_string(), "position[1]: expected at most 1023, found 1024");
    let range = refusal(|s, m| m.host_mut::<i32>(&s.io.block_table)[s.io.block_width] = 40);
    assert_eq!(range.to_string(), "block_table[1][0]: expected a page in 0..40, found 40");
    let null = refusal(|s, m| m.host_mut::<i32>(&s.io.block_table)[s.io.block_width] = 0);
    assert!(matches!(null, LayoutError::NullPage { request: 1, column: 0, .. }), "{null}");
    let slot = refusal(|s, m| m.host_mut::<i64>(&s.io.window_slot)[0] += 1);
    assert!(matches!(slot, LayoutError::Slot { row: 0, position: 511, .. }), "{slot}");
    let padded = refusal(|s, m| m.host_mut::<i64>(&s.io.c4_slot)[2] = 64);
    assert!(matches!(padded, LayoutError::Slot { row: 2, position: -1, expected: -1, .. }), "{padded}");
    let state = refusal(|s, m| m.host_mut::<i32>(&s.io.state_slot)[3] = 0);
    assert_eq!(state.to_string(), "state_slot[3]: slot 0 is request 0's too");
    let outside = refusal(|s, m| m.host_mut::<i32>(&s.io.state_slot)[3] = 9);
    assert!(matches!(outside, LayoutError::StateRange { request: 3, limit: 9, found: 9, .. }), "{outside}");
    let sample = refusal(|s, m| m.host_mut::<i32>(&s.io.sample_rows)[0] = 2);
    assert!(matches!(sample, LayoutError::SampleRow { sample: 0, found: 2, .. }), "{sample}");
    let other = refusal(|s, m| m.host_mut::<i32>(&s.io.sample_rows)[0] = 1);
    assert_eq!(other.to_string(), "sample_rows[0]: expected -1 or a row with a token of request 0, found 1");
    let parity = refusal(|s, m| m.host_mut::<i32>(&s.io.sample_position)[1] = 302);
    assert_eq!(parity.to_string(), "sample_position[1]: expected 301, found 302");
    let padded = refusal(|s, m| m.host_mut::<i32>(&s.io.sample_position)[2] = 0);
    assert_eq!(padded.to_string(), "sample_position[2]: expected -1, found 0");
}

#[test]
fn a_page_that_two_requests_see_is_not_written() {
    let shared = refusal(|s, m| {
        let page = m.host::<i32>(&s.io.block_table)[0];
        m.host_mut::<i32>(&s.io.block_table)[3 * s.io.block_width] = page;
        token(s, m, 3, 3, 127);
    });
    assert!(matches!(shared, LayoutError::PageShared { request: 3, other: 0, .. }), "{shared}");
    let twice = refusal(|s, m| {
        let pages = m.host_mut::<i32>(&s.io.window_table);
        pages[6] = pages[7];
    });
    assert!(matches!(twice, LayoutError::PageShared { request: 0, other: 0, .. }), "{twice}");
}

#[test]
fn positions_of_a_request_ascend_and_padding_is_last() {
    let step = prefill();
    let layout = Layout::of(&step.graph).unwrap();
    let check = |row: usize, position: i32| {
        let mut memory = apart(&step, &[(256, 200)]);
        memory.host_mut::<i32>(&step.io.position)[row] = position;
        layout.check(&memory, &AnyOwner).unwrap_err()
    };
    assert_eq!(check(5, 262), LayoutError::Position { row: 5, expected: 261, found: 262 });
    assert_eq!(check(5, -1), LayoutError::Position { row: 6, expected: -1, found: 262 });
    assert_eq!(check(0, -2), LayoutError::Position { row: 0, expected: -1, found: -2 });
}

/// Request 1 owns nothing.
struct NotTheSecond;

impl Owners for NotTheSecond {
    fn reads(&self, _: BufferId, request: usize, _: usize, _: usize) -> bool {
        request != 1
    }

    fn writes(&self, _: BufferId, request: usize, _: usize, _: usize) -> bool {
        request != 1
    }
}

#[test]
fn pages_of_others_are_refused() {
    let step = decode();
    let layout = Layout::of(&step.graph).unwrap();
    let error = layout.check(&apart(&step, &[(5, 1), (5, 1)]), &NotTheSecond).unwrap_err();
    assert!(matches!(error, LayoutError::NotReadable { request: 1, .. }), "{error}");
    assert_eq!(layout.check(&apart(&step, &[(5, 1), (0, 0)]), &NotTheSecond), Ok(()));
}

/// What the cache hands out and the engine fills in passes, block after block and token after token.
#[test]
fn the_engines_inputs_pass() {
    let (decode, prefill) = (decode(), prefill());
    let layouts = [&decode, &prefill].map(|s| Layout::of(&s.graph).unwrap());
    let mut caches = Caches::new(SIZE);
    let mut sequences: Vec<(Sequence, usize)> = Vec::new();
    let greedy = SamplingParams::default();
    for (owner, prompt) in [(1, 300), (2, 130)] {
        let mut sequence = Sequence::admit(&mut caches, Owner(owner), 700).unwrap();
        for start in (0..prompt).step_by(BLOCK_TOKENS) {
            let tokens = vec![1; (prompt - start).min(BLOCK_TOKENS)];
            sequence.extend_window(&mut caches, start, start + tokens.len()).unwrap();
            let segment =
                engine::Segment { sequence: &sequence, start, tokens: Given(&tokens), sample: Some(&greedy) };
            let mut memory = apart(&prefill, &[(0, 0)]);
            engine::fill(&prefill, &mut memory, &[segment]);
            assert_eq!(layouts[1].check(&memory, &AnyOwner), Ok(()), "block at {start}");
            sequence.slide(&mut caches, start + tokens.len(), 0).unwrap();
        }
        sequences.push((sequence, prompt));
    }
    for step in 0..300 {
        for (sequence, length) in &mut sequences {
            sequence.extend_window(&mut caches, *length, *length + 1).unwrap();
        }
        let segment = |(sequence, start)| engine::Segment {
            sequence,
            start,
            tokens: Given(&[1]),
            sample: Some(&greedy),
        };
        let segments: Vec<_> = sequences.iter().map(|(s, length)| segment((s, *length))).collect();
        let mut memory = apart(&decode, &[(0, 0)]);
        engine::fill(&decode, &mut memory, &segments);
        assert_eq!(layouts[0].check(&memory, &AnyOwner), Ok(()), "step {step}");
        for (sequence, length) in &mut sequences {
            *length += 1;
            sequence.slide(&mut caches, *length, step).unwrap();
        }
        caches.settle(step);
    }
}

/// Inputs, and selections if a step has run.
struct Known<'a> {
    graph: &'a Graph,
    memory: &'a Memory,
}

impl Contents for Known<'_> {
    fn bytes(&self, value: &Value) -> Option<&[u8]> {
        let known = self.graph.buffer(value.buffer).class == Class::Input;
        known.then(|| self.memory.host::<u8>(value))
    }
}

fn touched(step: &ModelStep, memory: &Memory) -> Vec<(Op, Vec<Touched>)> {
    let known = Known { graph: &step.graph, memory };
    step.graph.nodes.iter().map(|n| (n.op.clone(), n.op.touched(&known).unwrap())).collect()
}

fn declared(op: &Op, one: &Touched) -> bool {
    op.regions().iter().any(|access| {
        let part = match (&access.region.part, one.rows) {
            (Part::Settled, Rows::Settled) | (Part::Tail, Rows::Tail) => true,
            (Part::Bytes(range), Rows::None) => {
                one.ranges.iter().all(|r| range.start <= r.start && r.end <= range.end)
            }
            _ => false,
        };
        access.region.buffer == one.buffer && access.mode == one.mode && part
    })
}

#[test]
fn what_is_touched_is_inside_the_regions() {
    for (step, requests) in cases() {
        for (op, all) in touched(&step, &apart(&step, &requests)) {
            for one in &all {
                assert!(declared(&op, one), "{}: {one:?}", op.name());
                let bytes = step.graph.buffer(one.buffer).bytes;
                assert!(one.ranges.iter().all(|r| !r.is_empty() && r.end <= bytes), "{}: {one:?}", op.name());
                assert!(one.ranges.windows(2).all(|w| w[0].end < w[1].start), "{}: {one:?}", op.name());
            }
        }
    }
}

/// What the layout check is for: for inputs that pass it, no settled row is anywhere written, and no byte twice.
#[test]
fn settled_rows_and_written_rows_are_disjoint_in_fact() {
    for (step, requests) in cases() {
        let mut settled: BTreeMap<BufferId, Vec<std::ops::Range<usize>>> = BTreeMap::new();
        let mut written: BTreeMap<BufferId, Vec<std::ops::Range<usize>>> = BTreeMap::new();
        for (_, all) in touched(&step, &apart(&step, &requests)) {
            for one in all {
                let to = match (one.rows, one.mode) {
                    (Rows::Settled, Mode::Read) => &mut settled,
                    (Rows::Tail, Mode::Write) => &mut written,
                    _ => continue,
                };
                to.entry(one.buffer).or_default().extend(one.ranges);
            }
        }
        assert!(!written.is_empty());
        for (buffer, ranges) in written {
            let name = &step.graph.buffer(buffer).name;
            for r in &ranges {
                let meets = |other: &std::ops::Range<usize>| r.start < other.end && other.start < r.end;
                let read = settled.get(&buffer).is_some_and(|s| s.iter().any(meets));
                assert!(!read, "{requests:?}: {name} bytes {r:?} are written and read as settled");
                assert_eq!(ranges.iter().filter(|o| meets(o)).count(), 1, "{requests:?}: {name} {r:?}");
            }
        }
    }
}

#[test]
fn a_token_touches_the_rows_that_its_position_says() {
    let step = decode();
    let memory = apart(&step, &[(0, 0), (130, 1)]);
    let all = touched(&step, &memory);
    let rows = |name: &str, rows: Rows, mode: Mode| -> usize {
        let (_, touched) = all.iter().find(|(op, _)| op.name() == name).unwrap();
        let of = touched.iter().filter(|t| t.rows == rows && t.mode == mode);
        of.flat_map(|t| &t.ranges).map(ExactSizeIterator::len).sum()
    };
    assert_eq!(rows("rope_store", Rows::Tail, Mode::Write), 584);
    // The first attention has a window only: 127 settled rows and the token's own.
    assert_eq!(rows("attention", Rows::Settled, Mode::Read), 127 * 584);
    assert_eq!(rows("attention", Rows::Tail, Mode::Read), 584);
    // 131 tokens give 32 rows of 4, all of them older; fp8 keys take 132 bytes.
    assert_eq!(rows("index_logits", Rows::Settled, Mode::Read), 32 * 132);
    assert_eq!(rows("index_logits", Rows::None, Mode::Write), 32 * 4);
    // Token 130 completes no row of 4: its state is written, no row is, and none is pooled.
    assert_eq!(rows("index_store", Rows::Tail, Mode::Write), 2 * 256 * 4);
    assert_eq!(rows("index_store", Rows::Settled, Mode::Read), 0);
    assert_eq!(rows("topk", Rows::None, Mode::Read), 32 * 4 + 16);
}
