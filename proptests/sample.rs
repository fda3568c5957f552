//! `sample`: equal tokens on every executor, wherever the drawn number is not a hair from a boundary.

use flashlane::ops::{BufferId, Carry, Op, Sample, sample_uniform};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, Runs, Value, config};

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) logits: Vec<f32>,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) top_k: i32,
    pub(crate) seed: u64,
    pub(crate) position: i32,
}

impl Row {
    pub(crate) fn plain(logits: &[f32]) -> Self {
        let logits = logits.to_vec();
        Self { logits, temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: 1, position: 0 }
    }
}

pub(crate) struct Built {
    pub(crate) case: Case,
    token: Value,
    status: Value,
    carry: BufferId,
}

/// A request's slot: neither its row nor in order; the fourth of eight has none.
fn slot(row: usize, rows: usize) -> i32 {
    if row % 8 == 3 { [-1, i32::MAX][row / 8 % 2] } else { i32::try_from(rows - 1 - row).unwrap() }
}

pub(crate) fn build(rows: &[Row]) -> Built {
    let mut case = Case::new();
    let (samples, vocab) = (rows.len(), rows[0].logits.len());
    let flat: Vec<f32> = rows.iter().flat_map(|r| r.logits.clone()).collect();
    let logits = case.real("logits", Dtype::F32, &flat);
    let reals = |f: fn(&Row) -> f32| rows.iter().map(f).collect::<Vec<f32>>();
    let temperature = case.real("temperature", Dtype::F32, &reals(|r| r.temperature));
    let top_p = case.real("top_p", Dtype::F32, &reals(|r| r.top_p));
    let min_p = case.real("min_p", Dtype::F32, &reals(|r| r.min_p));
    let top_k = case.ints("top_k", &rows.iter().map(|r| r.top_k).collect::<Vec<_>>());
    let seed = case.seeds("seed", &rows.iter().map(|r| r.seed).collect::<Vec<_>>());
    let position = case.ints("position", &rows.iter().map(|r| r.position).collect::<Vec<_>>());
    let token = case.out("token", Dtype::I32, samples);
    let status = case.out("status", Dtype::I32, samples);
    let slots: Vec<i32> = (0..samples).map(|row| slot(row, samples)).collect();
    let state = case.state("carry", &vec![0.0; 2 * samples]);
    for (row, slot) in rows.iter().zip(&slots).filter(|(row, _)| row.position >= 0) {
        if let Some(slot) = usize::try_from(*slot).ok().filter(|slot| *slot < samples) {
            let cell = 2 * slot + usize::try_from(row.position).unwrap() % 2;
            case.writes(state, 4 * cell..4 * cell + 4);
        }
    }
    case.unread(state, 0..8 * samples);
    let carry = Carry { state, slots: samples, slot: case.ints("state_slot", &slots) };
    case.op(Op::Sample(Sample {
        logits,
        temperature,
        top_p,
        min_p,
        top_k,
        seed,
        position,
        token,
        status,
        carry,
        per_request: 1,
        samples,
        vocab,
    }));
    Built { case, token, status, carry: state }
}

fn run(rows: &[Row]) -> (Vec<i32>, Vec<i32>) {
    let built = build(rows);
    let runs: Runs = built.case.run();
    runs.agree_exactly(built.token.buffer);
    runs.agree_exactly(built.status.buffer);
    for found in &runs.all {
        let (tokens, carried) = (found.ints(&built.token), found.bytes(built.carry));
        for (at, (row, token)) in
            rows.iter().zip(tokens).enumerate().filter(|(_, (row, _))| row.position >= 0)
        {
            let Ok(slot) = usize::try_from(slot(at, rows.len())) else { continue };
            let cell = 2 * slot + usize::try_from(row.position).unwrap() % 2;
            if slot < rows.len() {
                assert_eq!(carried[4 * cell..][..4], token.to_ne_bytes(), "{}", found.executor);
            }
        }
    }
    (runs.oracle().ints(&built.token), runs.oracle().ints(&built.status))
}

#[test]
fn q13_rows_without_a_distribution_are_errors_of_that_row_alone() {
    let row = |logits: [f32; 4]| Row { temperature: 0.0, ..Row::plain(&logits) };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows = [
        row([-inf; 4]),
        row([nan; 4]),
        row([0.0, nan, 9.0, 1.0]),
        row([0.0, inf, 0.0, 0.0]),
        row([-inf, -inf, -3.0, -inf]),
        Row { position: -1, ..row([nan; 4]) },
        row([1.0, 2.0, 2.0, 0.0]),
        Row { temperature: 0.8, ..row([-inf, -inf, -3.0, -inf]) },
    ];
    let (token, status) = run(&rows);
    assert_eq!(token, [-1, -1, -1, -1, 2, -1, 1, 2]);
    assert_eq!(status, [1, 1, 1, 1, 0, 2, 0, 0]);
}

#[test]
fn each_filter_that_leaves_one_token_is_greedy() {
    let row = Row { seed: 77, ..Row::plain(&[0.1, 0.9, 0.8, -2.0, 0.9]) };
    let narrow = [
        Row { top_k: 1, ..row.clone() },
        Row { top_p: 0.0, ..row.clone() },
        Row { min_p: 1.0, top_k: 1, ..row.clone() },
        Row { temperature: 1e-4, top_k: 1, ..row.clone() },
    ];
    assert_eq!(run(&narrow).0, [1; 4]);
}

#[test]
fn filters_cut_where_their_definition_says() {
    // Probabilities 1/2, 1/4, 1/8, 1/8, out of order.
    let ln = f32::ln;
    let logits = [ln(0.125), ln(0.5), ln(0.125), ln(0.25)];
    let support = |row: &Row| {
        let rows: Vec<Row> = (0..400).map(|seed| Row { seed, ..row.clone() }).collect();
        let mut seen = run(&rows).0;
        seen.sort_unstable();
        seen.dedup();
        seen
    };
    let row = Row::plain(&logits);
    assert_eq!(support(&row), [0, 1, 2, 3]);
    assert_eq!(support(&Row { top_k: 3, ..row.clone() }), [0, 1, 3], "ties to the smaller id");
    assert_eq!(support(&Row { top_p: 0.7, ..row.clone() }), [1, 3]);
    assert_eq!(support(&Row { top_p: 0.8, ..row.clone() }), [0, 1, 3]);
    assert_eq!(support(&Row { min_p: 0.4, ..row.clone() }), [1, 3]);
    assert_eq!(support(&Row { min_p: 0.6, ..row }), [1]);
}

#[test]
fn draws_follow_the_probabilities() {
    // Probabilities 0.1, 0.2, 0.3, 0.4: over 4,000 seeds a frequency strays by 4 standard deviations, 0.031, at most.
    let row = Row::plain(&[0.1f32.ln(), 0.2f32.ln(), 0.3f32.ln(), 0.4f32.ln()]);
    let rows: Vec<Row> =
        (0..4000).map(|i| Row { seed: i / 50, position: (i % 50) as i32, ..row.clone() }).collect();
    let tokens = run(&rows).0;
    for (id, p) in [(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4)] {
        let share = tokens.iter().filter(|&&t| t == id).count() as f64 / 4000.0;
        assert!((share - p).abs() < 0.031, "token {id}: {share} against {p}");
    }
    assert_ne!(sample_uniform(1, 2), sample_uniform(2, 1));
}

/// Rows that several blocks share, of a length that nothing divides: filters one by one and together, likely ids far apart, and as
/// many ties as ids, of which the smaller are kept.
#[test]
fn long_rows_are_the_oracles() {
    let vocab = 9001;
    let mut draw = Draw::new(9);
    let row = Row { temperature: 0.4, ..Row::plain(&draw.normals(vocab, 3.0)) };
    let even = Row::plain(&vec![-0.5; vocab]);
    let kinds = [
        Row { top_p: 0.9, ..row.clone() },
        Row { top_k: 30, ..row.clone() },
        Row { top_k: 300, top_p: 0.5, min_p: 0.02, ..row.clone() },
        Row { top_k: 5000, ..even.clone() },
        Row { top_p: 0.25, ..even },
        Row { temperature: 0.0, ..row },
    ];
    let seeded = |seed| kinds.iter().map(move |kind| Row { seed, ..kind.clone() });
    let clear = |row: &Row| row.temperature == 0.0 || margin(row) > 2e-6;
    let rows: Vec<Row> = (0..4).flat_map(seeded).filter(clear).collect();
    assert!(rows.len() > 18);
    run(&rows);
}

/// The margins by which every decision of a row was made, as shares of the mass: small ones are left out of comparison.
fn margin(row: &Row) -> f64 {
    let t = f64::from(row.temperature);
    let best = row.logits.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let mass = |i: usize| (f64::from(row.logits[i] - best) / t).exp();
    let mut ids: Vec<usize> = (0..row.logits.len()).collect();
    ids.sort_by(|&a, &b| row.logits[b].total_cmp(&row.logits[a]).then(a.cmp(&b)));
    if row.top_k > 0 {
        ids.truncate(usize::try_from(row.top_k).unwrap());
    }
    let total: f64 = ids.iter().map(|&i| mass(i)).sum();
    let mut margin = f64::INFINITY;
    let (mut reached, mut kept) = (0.0, Vec::new());
    for &i in &ids {
        if reached >= f64::from(row.top_p) * total && !kept.is_empty() {
            break;
        }
        reached += mass(i);
        if row.top_p < 1.0 {
            margin = margin.min((reached / total - f64::from(row.top_p)).abs());
        }
        kept.push(i);
    }
    kept.retain(|&i| mass(i) >= f64::from(row.min_p));
    margin = ids.iter().fold(margin, |m, &i| {
        m.min((mass(i) - f64::from(row.min_p)).abs().max(f64::from(u8::from(row.min_p == 0.0))))
    });
    kept.sort_unstable();
    let total: f64 = kept.iter().map(|&i| mass(i)).sum();
    let uniform = f64::from(sample_uniform(row.seed, u32::try_from(row.position).unwrap()));
    let mut walked = 0.0;
    for &i in &kept {
        walked += mass(i) / total;
        margin = margin.min((walked - uniform).abs());
    }
    margin
}

proptest! {
    #![proptest_config(config(64))]

    /// f32 sums over a vocabulary of 300 are good to 300 eps, and exponentials of arguments up to 100 to as much: rows
    /// whose margin is below 1e-4 are left out.
    #[test]
    fn is_the_oracles(
        seed: u64, vocab in 1usize..300, temperature in prop::sample::select(vec![0.0f32, 0.3, 1.0, 2.0]),
        top_p in prop::sample::select(vec![0.1f32, 0.5, 0.9, 1.0]), min_p in prop::sample::select(vec![0.0f32, 0.05, 0.5]),
        top_k in 0i32..50,
    ) {
        let mut draw = Draw::new(seed);
        let row = |draw: &mut Draw| Row {
            logits: draw.normals(vocab, 3.0),
            temperature,
            top_p,
            min_p,
            top_k,
            seed: draw.below(1 << 40) as u64,
            position: i32::try_from(draw.below(1 << 20)).unwrap(),
        };
        let rows: Vec<Row> = (0..4).map(|_| row(&mut draw)).filter(|r| temperature == 0.0 || margin(r) > 1e-4).collect();
        prop_assume!(!rows.is_empty());
        let (token, status) = run(&rows);
        prop_assert!(token.iter().all(|&t| usize::try_from(t).is_ok_and(|t| t < vocab)));
        prop_assert!(status.iter().all(|&s| s == 0));
        let alone: Vec<i32> = rows.iter().map(|r| run(std::slice::from_ref(r)).0[0]).collect();
        prop_assert_eq!(token, alone);
    }
}
