//! How far two runs of a step are apart.

/// Two rows of logits. Equal bits are no difference, whatever they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogitsDiff {
    /// Some bits differ.
    pub bits: bool,
    /// Largest absolute difference; infinite where only one of two is a number.
    pub max_abs: f32,
    /// The best token differs.
    pub argmax: bool,
}

/// Compares the logits of one sampled row.
#[must_use]
pub fn logits(first: &[f32], second: &[f32]) -> LogitsDiff {
    let differing = first.iter().zip(second).filter(|(a, b)| a.to_bits() != b.to_bits());
    let apart: Vec<f32> = differing.map(|(&a, &b)| apart(a, b)).collect();
    LogitsDiff {
        bits: !apart.is_empty(),
        max_abs: apart.iter().copied().fold(0.0, f32::max),
        argmax: argmax(first) != argmax(second),
    }
}

fn apart(a: f32, b: f32) -> f32 {
    let difference = (a - b).abs();
    if difference.is_nan() { f32::INFINITY } else { difference }
}

/// The first of the largest numbers; NaN is below every number.
#[must_use]
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (at, &logit) in logits.iter().enumerate() {
        if !logit.is_nan() && best.is_none_or(|(_, b)| logit > b) {
            best = Some((at, logit));
        }
    }
    best.map(|(at, _)| at)
}

/// Entries of `first` that `second` lacks, or the other way round if those are more. Negative entries are none.
#[must_use]
pub fn missing(first: &[i32], second: &[i32]) -> usize {
    if first == second {
        return 0;
    }
    let lacks = |a: &[i32], b: &[i32]| {
        let mut left: Vec<i32> = b.iter().copied().filter(|i| *i >= 0).collect();
        let mut found = |i: &i32| left.iter().position(|l| l == i).map(|at| left.swap_remove(at)).is_some();
        a.iter().copied().filter(|i| *i >= 0 && !found(i)).count()
    };
    lacks(first, second).max(lacks(second, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bits_are_equal_and_lost_numbers_are_far_apart() {
        let nan = f32::NAN;
        assert_eq!(logits(&[1.0, nan, f32::INFINITY], &[1.0, nan, f32::INFINITY]), LogitsDiff::default());
        assert_eq!(logits(&[1.0, 2.0], &[1.5, 2.0]), LogitsDiff { bits: true, max_abs: 0.5, argmax: false });
        let lost = LogitsDiff { bits: true, max_abs: f32::INFINITY, argmax: true };
        assert_eq!(logits(&[1.0, nan], &[1.0, 2.0]), lost);
        // A zero's sign is a difference of bits, though none of value.
        assert_eq!(logits(&[0.0], &[-0.0]), LogitsDiff { bits: true, ..LogitsDiff::default() });
        assert_eq!((argmax(&[nan, 1.0, 1.0]), argmax(&[nan])), (Some(1), None));
    }

    #[test]
    fn sets_are_compared_with_repeats_and_without_order() {
        assert_eq!(missing(&[3, 1, 2, -1], &[1, 2, 3, -1]), 0);
        assert_eq!(missing(&[1, 2, -1, -1], &[1, 2, 7, 8]), 2);
        assert_eq!(missing(&[3, 3, 3], &[3, 3, 4]), 1);
        assert_eq!(missing(&[], &[]), 0);
    }
}
