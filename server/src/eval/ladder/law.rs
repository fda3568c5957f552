//! What faults must cost: the law of faults that break their own token alone, and the rule of thumb of the design notes.

use super::report::Struck;
use crate::interval::{Mean, Proportion};
use crate::sessions::Script;
use crate::tasks::lexicon::EOS;

/// A row further back than this is beyond the sliding window and can only be found by the index.
const WINDOW: usize = 128;

/// What became of each item when one token of its answer was struck, by token; the last one ends the answer.
#[derive(Clone, Debug)]
pub(super) struct Singles {
    /// The first wrong token.
    items: Vec<Vec<Option<usize>>>,
}

impl Singles {
    /// Nothing broken, for answers of these many tokens.
    pub(super) fn of(tokens: impl Iterator<Item = usize>) -> Self {
        Self { items: tokens.map(|tokens| vec![None; tokens]).collect() }
    }

    pub(super) fn set(&mut self, item: usize, token: usize, broken: Option<usize>) {
        self.items[item][token] = broken;
    }

    /// Tokens of the longest answer.
    pub(super) fn longest(&self) -> usize {
        self.items.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// How often what broke; `far` says of each item whether its characters lie beyond the window.
    pub(super) fn summary(&self, far: &[bool]) -> Struck {
        let share = |broken: &mut dyn Iterator<Item = bool>| {
            let (count, of) = broken.fold((0, 0), |(count, of), b| (count + usize::from(b), of + 1));
            Proportion::new(count, of)
        };
        let characters = (0..self.longest().saturating_sub(1)).map(|place| {
            let with = self.items.iter().filter(|item| place + 1 < item.len());
            share(&mut with.map(|item| item[place].is_some()))
        });
        let lying = |beyond: bool| {
            let items = self.items.iter().zip(far).filter(|(_, far)| **far == beyond);
            let characters = items.flat_map(|(item, _)| &item[..item.len().saturating_sub(1)]);
            share(&mut characters.map(Option::is_some))
        };
        let ends = self.items.iter().filter_map(|item| item.last()).map(Option::is_some);
        let stray = |(token, broken): (usize, &Option<usize>)| broken.is_some_and(|broken| broken != token);
        Struck {
            characters: characters.collect(),
            end: share(&mut { ends }),
            within_window: lying(false),
            beyond_window: lying(true),
            elsewhere: self.items.iter().flat_map(|i| i.iter().enumerate()).filter(|b| stray(*b)).count(),
        }
    }

    /// The share of items that fail if each token is struck with probability `rate` and breaks nothing but itself: the mean
    /// over the items of `1 - prod(1 - rate c)` over their tokens. One draw, 0 or 1, stands for each `c`: as the draws of an item's
    /// tokens are independent, the product has the right mean, whatever differs between items.
    pub(super) fn predict(&self, rate: f64) -> Mean {
        let fails = self.items.iter().map(|item| {
            let broken = item.iter().flatten().count();
            1.0 - (1.0 - rate).powi(i32::try_from(broken).unwrap_or(i32::MAX))
        });
        Mean::of(&fails.collect::<Vec<_>>())
    }
}

/// Mean over the items of `1 - (1 - rate (1 - k/N))^S`, `S` characters beyond the window and `N` rows: as if those were read
/// through this index alone, lost unless their row is drawn by chance, and no others.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(super) fn notes(scripts: &[Script], rate: f64, k: usize) -> f64 {
    let fails = scripts.iter().map(|script| {
        let found = beyond_window(script).map(|position| {
            // The token before it asks, and sees the rows that are full by then.
            let rows = position / 4;
            1.0 - rate * (1.0 - k.min(rows) as f64 / rows.max(1) as f64)
        });
        1.0 - found.product::<f64>()
    });
    fails.sum::<f64>() / scripts.len().max(1) as f64
}

/// Whether the characters of the answer lie beyond the window: all of them, or none.
pub(super) fn is_far(script: &Script) -> bool {
    beyond_window(script).next().is_some()
}

/// Positions of the characters of the answer that lie beyond the window.
fn beyond_window(script: &Script) -> impl Iterator<Item = usize> + '_ {
    script.turns.iter().flat_map(move |turn| {
        let of_turn = (turn.start..).zip(&turn.ids);
        let written = of_turn.filter(|(_, id)| **id != u32::from(EOS)).map(|(position, _)| position);
        written.filter(move |&position| script.place(position).is_some_and(|place| place.distance > WINDOW))
    })
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::{Singles, beyond_window, notes};
    use crate::eval::ladder::Rung;
    use crate::eval::suites::needles;
    use crate::interval::Proportion;
    use crate::tasks::lexicon::Lexicon;

    #[test]
    fn the_rule_of_thumb_follows_its_formula() {
        let scripts = needles(&Lexicon::load().unwrap(), 3, 60, 400, 8).unwrap().scripts;
        let far: Vec<usize> = scripts.iter().map(|script| beyond_window(script).count()).collect();
        assert!(far.contains(&0) && far.iter().any(|&n| n >= 6), "near and far items: {far:?}");
        assert_eq!(notes(&scripts, 0.0, 16), 0.0);
        let at = far.iter().position(|&n| n >= 6).unwrap();
        let each: f64 = 1.0 - 0.1 * (1.0 - 16.0 / 100.0);
        let whole = 1.0 - each.powi(i32::try_from(far[at]).unwrap());
        assert!((notes(&scripts[at..=at], 0.1, 16) - whole).abs() < 5e-3);
    }

    /// A model whose tokens break as easily as those of the built-in one, each item in its own degree.
    struct Made {
        items: Vec<Vec<f64>>,
    }

    impl Made {
        fn new(count: usize, rng: &mut Rng) -> Self {
            let easily = |place: usize| if place == 0 { 0.7 } else { 0.38 };
            let item = |rng: &mut Rng| {
                let degree = 0.6 + 0.8 * rng.f64();
                let tokens = rng.usize(4..=8);
                let mut item: Vec<f64> = (0..tokens).map(|place| easily(place) * degree).collect();
                item.push(0.05);
                item
            };
            Self { items: (0..count).map(|_| item(rng)).collect() }
        }

        fn singles(&self, rng: &mut Rng) -> Singles {
            let mut singles = Singles::of(self.items.iter().map(Vec::len));
            for (i, item) in self.items.iter().enumerate() {
                for (token, c) in item.iter().enumerate() {
                    singles.set(i, token, (rng.f64() < *c).then_some(token));
                }
            }
            singles
        }

        /// Items that fail when tokens are struck at `rate` and break `milder` times as easily.
        fn failed(&self, rate: f64, milder: f64, rng: &mut Rng) -> Proportion {
            let mut breaks = |c: f64| rng.f64() < rate && rng.f64() < milder * c;
            let failed = self.items.iter().filter(|item| item.iter().any(|c| breaks(*c))).count();
            Proportion::new(failed, self.items.len())
        }
    }

    /// How many of 300 ladders of 200 items have a rung at `rate` that disagrees, if tokens are struck at `injected`.
    fn disagree(rate: f64, injected: f64, milder: f64) -> usize {
        let mut rng = Rng::with_seed(5);
        let mut one = || {
            let made = Made::new(200, &mut rng);
            let singles = made.singles(&mut rng);
            let failed = made.failed(injected, milder, &mut rng);
            let (predicted, half) = (singles.predict(rate), singles.predict(rate / 2.0));
            !Rung { rate, failed, predicted, half, notes: 0.0 }.agrees()
        };
        (0..300).filter(|_| one()).count()
    }

    #[test]
    fn the_law_is_found_to_hold_where_it_holds() {
        for rate in [0.01, 0.1, 0.3, 1.0] {
            let found = disagree(rate, rate, 1.0);
            assert!(found <= 15, "{found} of 300 at {rate}: more than one in twenty");
        }
    }

    #[test]
    fn another_rate_or_a_milder_model_is_found_out() {
        for (rate, least) in [(0.1, 240), (0.3, 300), (1.0, 300)] {
            let (half, double) = (disagree(rate, rate / 2.0, 1.0), disagree(rate / 2.0, rate, 1.0));
            assert!(half >= least && double >= least, "{half} and {double} of 300 at {rate}");
            let milder = disagree(rate, rate, 0.5);
            assert!(milder >= least, "{milder} of 300 at {rate}");
        }
        assert!(disagree(1.0, 0.0, 1.0) == 300 && disagree(0.1, 1.0, 1.0) == 300);
    }

    #[test]
    fn tokens_are_told_apart_by_their_place() {
        let mut singles = Singles::of([3, 2].into_iter());
        singles.set(0, 0, Some(0));
        singles.set(0, 2, Some(1));
        singles.set(1, 1, Some(1));
        let struck = singles.summary(&[true, false]);
        let counts = |p: &Proportion| (p.count, p.of);
        assert_eq!(struck.characters.iter().map(counts).collect::<Vec<_>>(), [(1, 2), (0, 1)]);
        assert_eq!((counts(&struck.end), struck.elsewhere), ((2, 2), 1));
        assert_eq!((counts(&struck.within_window), counts(&struck.beyond_window)), ((0, 1), (1, 2)));
        let of = |rate: f64| (1.0 - (1.0 - rate) * (1.0 - rate) + rate) / 2.0;
        assert!((singles.predict(0.3).mean - of(0.3)).abs() < 1e-12);
    }
}
