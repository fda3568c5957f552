//! The exact interval of a binomial proportion (Clopper and Pearson, 1934): what a count of failures says about the rate.
//!
//! Its ends are quantiles of beta distributions, found by bisection on the regularised incomplete beta function.

use std::fmt;

/// Mass outside of the interval, half of it on each side.
const OUTSIDE: f64 = 0.05;

/// A count with the 95 % interval of its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Proportion {
    pub count: usize,
    pub of: usize,
    pub low: f64,
    pub high: f64,
}

impl Proportion {
    pub fn new(count: usize, of: usize) -> Self {
        let (low, high) = interval(count, of);
        Self { count, of, low, high }
    }

    /// 0 of nothing.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn rate(&self) -> f64 {
        self.count as f64 / self.of.max(1) as f64
    }
}

/// A mean of numbers from 0 to 1 with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Mean {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

impl Mean {
    /// The interval is that of a proportion of so many items as would have the variance of this mean (Korn and Graubard, 1998).
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let variance = squares / (n * (n - 1.0)).max(1.0);
        // Without any spread the items say nothing of it.
        let of = if variance > 0.0 { mean * (1.0 - mean) / variance } else { n };
        let (low, high) = ends(mean * of, of);
        Self { mean, low, high }
    }
}

impl fmt::Display for Proportion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rate, low, high] = [self.rate(), self.low, self.high].map(percent);
        write!(f, "{}/{} = {rate}, 95 % interval {low} to {high}", self.count, self.of)
    }
}

/// Percent with at most two digits behind the point.
pub fn percent(rate: f64) -> String {
    let text = format!("{:.2}", rate * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The exact 95 % interval of the rate behind `count` of `of`.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn interval(count: usize, of: usize) -> (f64, f64) {
    ends(count.min(of) as f64, of as f64)
}

/// For counts that need not be whole.
fn ends(k: f64, n: f64) -> (f64, f64) {
    let low = if k <= 0.0 { 0.0 } else { quantile(OUTSIDE / 2.0, k, n - k + 1.0) };
    let high = if k >= n { 1.0 } else { quantile(1.0 - OUTSIDE / 2.0, k + 1.0, n - k) };
    (low, high)
}

/// Where the distribution function of Beta(a, b) reaches `mass`.
fn quantile(mass: f64, a: f64, b: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    // Each step halves the bracket; 60 leave less than the last bit of any rate that is printed.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if incomplete_beta(middle, a, b) < mass {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// I_x(a, b), by the continued fraction on the side where it converges fast.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(1.0 - x, b, a) / b
    }
}

/// The continued fraction of the incomplete beta function, evaluated from the front (Lentz).
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let (mut c, mut value) = (1.0, d);
    for m in (1..10_000).map(f64::from) {
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = value;
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            value *= c * d;
        }
        if (value / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// ln Γ(x) for x > 0: Stirling's series, with small arguments moved up to where it is exact to the last digits.
fn ln_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 12.0 {
        shift += x.ln();
        x += 1.0;
    }
    let (r, r2) = (1.0 / x, 1.0 / (x * x));
    let series =
        r * (1.0 / 12.0 - r2 * (1.0 / 360.0 - r2 * (1.0 / 1260.0 - r2 * (1.0 / 1680.0 - r2 / 1188.0))));
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - shift
}

#[cfg(test)]
mod tests {
    use super::{Mean, Proportion, incomplete_beta, interval, ln_gamma};

    fn near(a: f64, b: f64, within: f64) {
        assert!((a - b).abs() < within, "{a} and {b}");
    }

    #[test]
    fn known_values() {
        near(ln_gamma(1.0), 0.0, 1e-13);
        near(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln(), 1e-13);
        near(ln_gamma(11.0), 3_628_800f64.ln(), 1e-12);
        // I_x(2, 3) = x^2 (6 - 8x + 3x^2).
        near(incomplete_beta(0.3, 2.0, 3.0), 0.09 * (6.0 - 2.4 + 0.27), 1e-13);
        near(incomplete_beta(0.7, 3.0, 2.0), 1.0 - 0.09 * (6.0 - 2.4 + 0.27), 1e-13);
    }

    /// The ends are where the binomial tails hold 2.5 % each.
    #[test]
    fn the_tails_hold_what_they_must() {
        let term = |n: usize, i: usize, p: f64| {
            let choose = (1..=i).fold(1.0, |c, j| c * (n - i + j) as f64 / j as f64);
            choose * p.powi(i as i32) * (1.0 - p).powi((n - i) as i32)
        };
        for (k, n) in [(6, 40), (1, 1), (1, 60), (30, 60), (59, 60), (3, 200)] {
            let (low, high) = interval(k, n);
            near((k..=n).map(|i| term(n, i, low)).sum(), 0.025, 1e-9);
            if k < n {
                near((0..=k).map(|i| term(n, i, high)).sum(), 0.025, 1e-9);
            }
        }
    }

    #[test]
    fn counts_of_the_reported_experiment() {
        let (low, high) = interval(6, 40);
        near(low, 0.0571, 1e-4);
        near(high, 0.2984, 1e-4);
        near(interval(0, 80).1, 0.0451, 1e-4);
        let (low, high) = interval(0, 736);
        assert!(low == 0.0 && high < 0.005, "{high}");
        assert_eq!(interval(0, 0), (0.0, 1.0));
        assert_eq!(interval(5, 5).1, 1.0);
        let text = Proportion::new(6, 40).to_string();
        assert_eq!(text, "6/40 = 15%, 95 % interval 5.71% to 29.84%");
    }

    #[test]
    fn a_mean_of_zeros_and_ones_is_a_proportion() {
        let values: Vec<f64> = (0..200).map(|i| if i < 30 { 1.0 } else { 0.0 }).collect();
        let (mean, (low, high)) = (Mean::of(&values), interval(30, 200));
        near(mean.mean, 0.15, 1e-12);
        // The variance of a sample has one degree of freedom less.
        near(mean.low, low, 5e-4);
        near(mean.high, high, 5e-4);
        let all = Mean::of(&[1.0; 50]);
        assert_eq!((all.mean, all.low, all.high), (1.0, interval(50, 50).0, 1.0));
        // Half the spread about the same mean: half the width.
        let narrow: Vec<f64> = (0..200).map(|i| if i % 2 == 0 { 0.25 } else { 0.75 }).collect();
        let wide: Vec<f64> = (0..200).map(|i| if i % 2 == 0 { 0.0 } else { 1.0 }).collect();
        let width = |values: &[f64]| Mean::of(values).high - Mean::of(values).low;
        near(width(&narrow) / width(&wide), 0.5, 0.01);
        assert_eq!(Mean::of(&[]).mean, 0.0);
    }
}
