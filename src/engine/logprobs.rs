//! Log-probabilities of emitted tokens, from the logits that the step left for the host.

use super::api::Logprobs;

/// Natural log-probabilities under the model (temperature 1, nothing cut), in f64.
pub(super) fn logprobs(logits: &[f32], chosen: u32, top: u32) -> Logprobs {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - best).exp()).sum();
    #[allow(clippy::cast_possible_truncation)]
    let of = |id: u32| (f64::from(logits[id as usize] - best) - sum.ln()) as f32;
    let mut ids: Vec<u32> = (0u32..).take(logits.len()).collect();
    let order = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    let top = (top as usize).min(ids.len());
    if top > 0 && top < ids.len() {
        ids.select_nth_unstable_by(top, order);
    }
    ids.truncate(top);
    ids.sort_unstable_by(order);
    Logprobs { chosen: of(chosen), top: ids.into_iter().map(|id| (id, of(id))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_first_ties_to_the_smaller_id_and_probabilities_sum_to_one() {
        let logits = [0.0, 2.0, 1.0, 2.0];
        let got = logprobs(&logits, 2, 4);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 2, 0]);
        let sum: f32 = got.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(got.chosen, got.top[2].1);
        assert_eq!(logprobs(&logits, 0, 2).top.len(), 2);
        assert!(logprobs(&logits, 0, 0).top.is_empty());
    }
}
