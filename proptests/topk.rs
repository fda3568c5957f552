//! `topk`: exact on every executor, and the public cases that broke others.

use flashlane::ops::{Op, TopK};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, Runs, Value, config};

/// The last position that sees `visible` rows and no more.
pub(crate) fn position(visible: usize) -> i32 {
    i32::try_from(visible * 4 + 3).unwrap() - 1
}

pub(crate) fn build(positions: &[i32], logits: &[f32], k: usize) -> (Case, Value) {
    let mut case = Case::new();
    let tokens = case.tokens(1, positions);
    let width = logits.len() / positions.len();
    let logits = case.real("logits", Dtype::F32, logits);
    for (t, &p) in positions.iter().enumerate() {
        let visible = usize::try_from(p + 1).unwrap_or(0) / 4;
        // Invisible columns mean nothing, and nor do scores where all rows are taken.
        let read = if visible <= k { 0 } else { visible.min(width) };
        case.unread_elements(&logits, t * width + read..(t + 1) * width);
    }
    let selected = case.out("selected", Dtype::I32, positions.len() * k);
    case.op(Op::TopK(TopK { tokens, logits, width, selected, k }));
    (case, selected)
}

fn run(positions: &[i32], logits: &[f32], k: usize) -> Vec<Vec<i32>> {
    let (case, selected) = build(positions, logits, k);
    let runs: Runs = case.run();
    runs.agree_exactly(selected.buffer);
    runs.oracle().ints(&selected).chunks(k).map(<[i32]>::to_vec).collect()
}

/// The chosen rows of a single request that sees every column.
fn choose(logits: &[f32], k: usize) -> Vec<usize> {
    let all = run(&[position(logits.len())], logits, k).remove(0);
    all.iter().map_while(|&i| usize::try_from(i).ok()).collect()
}

#[test]
fn t01_zeros_that_tie_by_the_thousand_fill_up_with_the_smallest_indices() {
    let mut logits = vec![0.0; 4096];
    let winners: Vec<usize> = (0..10).map(|i| 4000 - 317 * i).collect();
    winners.iter().for_each(|&w| logits[w] = 1.0 + w as f32);
    let mut want: Vec<usize> = (0..4096).filter(|i| !winners.contains(i)).take(502).collect();
    want.extend(&winners);
    want.sort_unstable();
    assert_eq!(choose(&logits, 512), want);
}

#[test]
fn t02_scores_within_one_half_precision_bin_are_told_apart() {
    let order = Draw::new(2).permutation(8192);
    let logits: Vec<f32> = order.iter().map(|&p| 1.0 + p as f32 * 2f32.powi(-23)).collect();
    let want: Vec<usize> = (0..8192).filter(|&i| order[i] >= 8192 - 512).collect();
    assert_eq!(choose(&logits, 512), want);
}

#[test]
fn a_new_best_score_replaces_the_worst_of_the_chosen_and_no_other() {
    let mut logits: Vec<f32> = (0..2000).map(|i| ((i * 7919) % 2000) as f32).collect();
    let before = choose(&logits, 512);
    let worst = *before.iter().min_by(|&&a, &&b| logits[a].total_cmp(&logits[b])).unwrap();
    let outsider = (0..2000).find(|i| !before.contains(i)).unwrap();
    logits[outsider] = 1e9;
    let mut want: Vec<usize> = before.into_iter().filter(|&i| i != worst).chain([outsider]).collect();
    want.sort_unstable();
    assert_eq!(choose(&logits, 512), want);
}

#[test]
fn t04_nothing_beyond_the_length_is_chosen() {
    let mut logits: Vec<f32> = (0..1001).map(|i| -1e5 - i as f32).collect();
    (0..10).for_each(|i| logits[100 * i + 50] = 1.0);
    logits.resize(1400, 1e9);
    let chosen = run(&[position(1001)], &logits, 512).remove(0);
    // The ten, and of the falling scores the first 502: those below 507, five of the ten being among them.
    let want: Vec<i32> = (0..1001).filter(|i| *i < 507 || i % 100 == 50).collect();
    assert_eq!(chosen, want);
}

#[test]
fn t05_lengths_of_every_kind_in_one_batch() {
    let lengths = [70_000, 0, 0, 5, 513];
    let width = 70_000;
    let mut draw = Draw::new(5);
    let logits: Vec<f32> = (0..5 * width).map(|_| draw.normal(1.0)).collect();
    let mut positions: Vec<i32> = lengths.iter().map(|&n| position(n)).collect();
    positions[1] = -1;
    let rows = run(&positions, &logits, 512);
    assert!(rows[1].iter().chain(&rows[2]).all(|&i| i == -1));
    assert_eq!(rows[3][..6], [0, 1, 2, 3, 4, -1]);
    let all = &logits[4 * width..4 * width + 513];
    let worst = (0..513).min_by(|&a, &b| all[a].total_cmp(&all[b])).unwrap();
    let want: Vec<i32> = (0..513).filter(|&i| i != i32::try_from(worst).unwrap()).collect();
    assert_eq!(rows[4], want);
    assert!(rows[0].iter().all(|&i| (0..70_000).contains(&i)));
}

#[test]
fn t08_nan_never_beats_a_number_and_infinities_are_numbers() {
    let n = 700;
    let valid = |chosen: &[usize]| {
        assert_eq!(chosen.len(), 512);
        assert!(chosen.windows(2).all(|w| w[0] < w[1]) && chosen[511] < n);
    };
    let nan = vec![f32::NAN; n];
    assert_eq!(choose(&nan, 512), (0..512).collect::<Vec<_>>());
    let mut one = vec![f32::NEG_INFINITY; n];
    one[3] = f32::NAN;
    assert!(!choose(&one, 512).contains(&3));
    let half: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { f32::NAN } else { -(i as f32) }).collect();
    let chosen = choose(&half, 512);
    valid(&chosen);
    assert_eq!(chosen.iter().filter(|i| *i % 2 == 1).count(), 350, "all numbers come before any NaN");
    let infinite: Vec<f32> = (0..n).map(|i| if i < 100 { 1.0 } else { f32::INFINITY }).collect();
    assert_eq!(choose(&infinite, 512), (100..612).collect::<Vec<_>>());
    assert_eq!(choose(&vec![f32::NEG_INFINITY; n], 512), (0..512).collect::<Vec<_>>());
    let cycle = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40];
    let mixed: Vec<f32> = (0..n).map(|i| cycle[i % 6]).collect();
    valid(&choose(&mixed, 512));
}

#[test]
fn t09_minus_zero_ties_with_zero() {
    let logits: Vec<f32> = (0..600).map(|i| if i < 300 { -0.0 } else { 0.0 }).collect();
    assert_eq!(choose(&logits, 512), (0..512).collect::<Vec<_>>());
}

#[test]
fn t10_a_thousand_ties_at_the_boundary_give_the_same_answer_every_time() {
    let mut logits: Vec<f32> = vec![1.0; 1000];
    logits.extend((0..200).map(|i| 2.0 + i as f32));
    let first = choose(&logits, 512);
    assert_eq!(first, (0..312).chain(1000..1200).collect::<Vec<_>>());
    for _ in 0..9 {
        assert_eq!(choose(&logits, 512), first);
    }
}

#[test]
fn t13_lengths_around_k() {
    for k in [512usize, 1024] {
        for n in [511, 512, 513, 1023, 1024, 1025] {
            let mut draw = Draw::new(n as u64);
            let logits = draw.normals(n, 1.0);
            let chosen = choose(&logits, k);
            assert_eq!(chosen.len(), n.min(k));
            assert!(chosen.windows(2).all(|w| w[0] < w[1]));
            if n > k {
                let worst = chosen.iter().map(|&i| logits[i]).fold(f32::INFINITY, f32::min);
                assert!((0..n).all(|i| chosen.contains(&i) || logits[i] <= worst));
            }
        }
    }
}

/// Scores of one row, by how they make the choice hard.
#[derive(Clone, Copy, Debug)]
enum Scores {
    Normal,
    /// The best stand side by side.
    Ascending,
    /// More ties at the boundary than any list holds.
    Equal,
    Levels,
    /// Magnitudes over the whole range of f32, both signs.
    AnyBits,
    /// Most rows masked, some NaN.
    Masked,
}

const SCORES: [Scores; 6] =
    [Scores::Normal, Scores::Ascending, Scores::Equal, Scores::Levels, Scores::AnyBits, Scores::Masked];

impl Scores {
    fn draw(self, draw: &mut Draw, n: usize) -> Vec<f32> {
        let one = |i: usize| match self {
            Self::Normal => draw.normal(1.0),
            Self::Ascending => i as f32,
            Self::Equal => 0.25,
            Self::Levels => draw.below(5) as f32,
            Self::AnyBits => f32::from_bits(draw.below(1 << 32) as u32),
            Self::Masked => match draw.below(20) {
                0 => draw.normal(1.0),
                1 => f32::NAN,
                _ => f32::NEG_INFINITY,
            },
        };
        (0..n).map(one).collect()
    }
}

/// One block, a cluster, and what is too long for it, at their largest and a little more.
#[test]
fn every_way_to_share_a_row_is_exact() {
    for (rows, width) in [(1, 8192), (17, 32_768), (1, 262_144), (1, 262_147)] {
        for kind in [Scores::Normal, Scores::Levels] {
            let logits = kind.draw(&mut Draw::new(width as u64), rows * width);
            let chosen = run(&vec![position(width); rows], &logits, 512);
            assert!(chosen.iter().all(|row| row.windows(2).all(|w| w[0] < w[1])));
        }
    }
}

proptest! {
    #![proptest_config(config(24))]

    /// Of long rows too, whatever the scores; a row's choice is the same alone.
    #[test]
    fn long_rows_are_the_oracles(
        seed: u64, rows in 1usize..3, width in 8193usize..40_000, kind in prop::sample::select(SCORES.to_vec()),
        k in prop::sample::select(vec![1usize, 40, 512, 2048, 6000]), short: bool,
    ) {
        let mut draw = Draw::new(seed);
        let logits: Vec<f32> = (0..rows).flat_map(|_| kind.draw(&mut draw, width)).collect();
        let mut positions = vec![position(width); rows];
        if short {
            positions[0] = position(draw.below(width));
        }
        let all = run(&positions, &logits, k);
        let last = rows - 1;
        prop_assert_eq!(&run(&positions[last..], &logits[last * width..], k)[0], &all[last]);
    }
}

proptest! {
    #![proptest_config(config(48))]

    /// Few distinct values, so that ties are everywhere; a permutation of the batch permutes the answers.
    #[test]
    fn is_the_oracles_in_any_order_of_rows(
        seed: u64, rows in 1usize..5, width in 1usize..400, k in 1usize..80, levels in 1usize..40,
    ) {
        let mut draw = Draw::new(seed);
        let logits: Vec<f32> = (0..rows * width).map(|_| draw.below(levels) as f32 - 3.0).collect();
        let positions: Vec<i32> =
            (0..rows).map(|_| i32::try_from(draw.below(4 * width + 8)).unwrap() - 2).map(|p| p.max(-1)).collect();
        let straight = run(&positions, &logits, k);
        let order = draw.permutation(rows);
        let moved_positions: Vec<i32> = order.iter().map(|&r| positions[r]).collect();
        let moved: Vec<f32> = order.iter().flat_map(|&r| &logits[r * width..(r + 1) * width]).copied().collect();
        let want: Vec<_> = order.iter().map(|&r| straight[r].clone()).collect();
        prop_assert_eq!(run(&moved_positions, &moved, k), want);
    }

    /// Scaling by two changes no order.
    #[test]
    fn doubling_changes_nothing(seed: u64, width in 1usize..400, k in 1usize..80) {
        let logits = Draw::new(seed).normals(width, 1.0);
        let doubled: Vec<f32> = logits.iter().map(|v| 2.0 * v).collect();
        prop_assert_eq!(choose(&logits, k), choose(&doubled, k));
    }
}
