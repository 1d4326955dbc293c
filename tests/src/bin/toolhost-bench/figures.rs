//! Samples and what is computed from them: percentiles, ratios, and comparisons that alternate.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::options::Effort;

/// Times of one thing, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// One more.
    pub(crate) fn add(&mut self, taken: Duration) {
        self.0.push(taken.as_secs_f64() * 1e3);
    }

    /// One more, of something that is no time.
    pub(crate) fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// All of these too.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// The value that this share of the samples does not exceed (nearest rank); NaN when there are none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The median.
    pub(crate) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    /// What one in twenty exceeds.
    pub(crate) fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    /// For `results.json`.
    pub(crate) fn json(&self) -> Value {
        let round = |value: f64| (value * 1e4).round() / 1e4;
        json!({
            "count": self.0.len(),
            "min_ms": round(self.quantile(0.0)),
            "p50_ms": round(self.p50()),
            "p95_ms": round(self.p95()),
            "p99_ms": round(self.quantile(0.99)),
            "max_ms": round(self.quantile(1.0)),
        })
    }
}

/// A ratio that was measured more than once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    /// The median of the repeats: the figure.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) least: f64,
    /// The largest.
    pub(crate) most: f64,
}

impl Ratio {
    /// Of repeats of the same ratio.
    pub(crate) fn of(repeats: impl IntoIterator<Item = f64>) -> Self {
        let repeats = Samples(repeats.into_iter().collect());
        Self { median: repeats.p50(), least: repeats.quantile(0.0), most: repeats.quantile(1.0) }
    }
}

/// Two things measured in turn, round by round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Comparison {
    rounds: Vec<(Samples, Samples)>,
}

impl Comparison {
    /// Adds a round.
    pub(crate) fn add(&mut self, ours: Samples, theirs: Samples) {
        self.rounds.push((ours, theirs));
    }

    /// Our figure over theirs, by round.
    pub(crate) fn ratio(&self, figure: impl Fn(&Samples) -> f64) -> Ratio {
        Ratio::of(self.rounds.iter().map(|(ours, theirs)| figure(ours) / figure(theirs)))
    }

    /// Ours, of all rounds.
    pub(crate) fn ours(&self) -> Samples {
        self.merged(|round| &round.0)
    }

    /// Theirs, of all rounds.
    pub(crate) fn theirs(&self) -> Samples {
        self.merged(|round| &round.1)
    }

    fn merged(&self, side: impl Fn(&(Samples, Samples)) -> &Samples) -> Samples {
        let mut all = Samples::default();
        for round in &self.rounds {
            all.extend(side(round));
        }
        all
    }
}

/// One round of a comparison: blocks of ours and of theirs in turn, the first repetition of each block not counted.
///
/// # Errors
/// When one of them fails.
pub(crate) async fn alternate(
    effort: Effort,
    mut ours: impl AsyncFnMut() -> Result<Duration>,
    mut theirs: impl AsyncFnMut() -> Result<Duration>,
) -> Result<(Samples, Samples)> {
    let mut samples = (Samples::default(), Samples::default());
    for _ in 0..effort.blocks {
        ours().await?;
        for _ in 0..effort.block {
            samples.0.add(ours().await?);
        }
        theirs().await?;
        for _ in 0..effort.block {
            samples.1.add(theirs().await?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let samples = Samples((1..=20).rev().map(f64::from).collect());
        assert_eq!((samples.p50(), samples.p95(), samples.quantile(1.0)), (10.0, 19.0, 20.0));
        assert_eq!(samples.quantile(0.0), 1.0);
        assert!(Samples::default().p50().is_nan());
    }

    #[test]
    fn a_comparison_judges_by_the_median_round() {
        let mut comparison = Comparison::default();
        for (ours, theirs) in [(2.0, 1.0), (3.0, 1.0), (30.0, 1.0)] {
            comparison.add(Samples(vec![ours]), Samples(vec![theirs]));
        }
        let ratio = comparison.ratio(Samples::p50);
        assert_eq!((ratio.least, ratio.median, ratio.most), (2.0, 3.0, 30.0));
    }
}
