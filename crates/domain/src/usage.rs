//! What calls and sessions cost, summed up: figures, and a histogram of durations that answers for percentiles.
//!
//! # Design notes
//!
//! Percentiles come from classes of durations that are counted as calls end, so that asking for those of a month costs as
//! little as those of an hour. A class is a quarter of an octave, which bounds the error of a percentile to 10 %.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

/// Class of calls that never ran: denied, or ended while they waited.
pub const NEVER_RAN: i16 = -1;
/// The last class; longer calls than any limit allows.
pub const LAST_CLASS: i16 = 95;

/// The class of a duration in milliseconds. The database has a twin of it where calls are metered.
#[must_use]
pub fn duration_class(duration_ms: u64) -> i16 {
    let class = ((duration_ms as f64 + 1.0).log2() * 4.0).floor();
    class.clamp(0.0, f64::from(LAST_CLASS)) as i16
}

/// What stands for a class: the middle of it, in milliseconds.
#[must_use]
pub fn duration_of_class(class: i16) -> u64 {
    ((f64::from(class) + 0.5) / 4.0).exp2().round() as u64 - 1
}

/// Sums over calls that have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFigures {
    /// All of them.
    pub calls: u64,
    /// The tool ran to its end.
    pub succeeded: u64,
    /// Of these, the tool said that it did not go well (a command's exit code, say).
    pub tool_errors: u64,
    /// They could not be done.
    pub failed: u64,
    /// Their time ran out.
    pub timed_out: u64,
    /// Somebody cancelled them.
    pub cancelled: u64,
    /// Policy refused them.
    pub denied: u64,
    /// Nobody can know what they did.
    pub lost: u64,
    /// They waited for longer than a second.
    pub waited: u64,
    /// CPU time in sandboxes.
    pub cpu_ms: u64,
    /// From start to end.
    pub duration_ms: u64,
    /// From admission to start.
    pub queue_ms: u64,
    /// Bytes of arguments and input.
    pub bytes_in: u64,
    /// Bytes of output.
    pub bytes_out: u64,
    /// How many of each class of durations.
    pub durations: BTreeMap<i16, u64>,
}

impl CallFigures {
    /// Adds other sums to these.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.succeeded += other.succeeded;
        self.tool_errors += other.tool_errors;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.cancelled += other.cancelled;
        self.denied += other.denied;
        self.lost += other.lost;
        self.waited += other.waited;
        self.cpu_ms += other.cpu_ms;
        self.duration_ms += other.duration_ms;
        self.queue_ms += other.queue_ms;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        for (class, calls) in &other.durations {
            *self.durations.entry(*class).or_default() += calls;
        }
    }

    /// Calls that did not do what they were to: failed, timed out, lost.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.failed + self.timed_out + self.lost
    }

    /// Errors among the calls that were let run or wait; nothing when there were none.
    #[must_use]
    pub fn error_rate(&self) -> Option<f64> {
        let tried = self.calls.saturating_sub(self.denied);
        (tried > 0).then(|| self.errors() as f64 / tried as f64)
    }

    /// The duration, in milliseconds, that this part (0 to 1) of the calls that ran did not exceed.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<u64> {
        let ran = self.durations.range(0..);
        let total: u64 = ran.clone().map(|(_, calls)| calls).sum();
        let wanted = ((total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (class, calls) in ran {
            seen += calls;
            if seen >= wanted {
                return Some(duration_of_class(*class));
            }
        }
        None
    }
}

/// What sessions took, whether or not calls ran in them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionFigures {
    /// Seconds that sessions served, by size class; `custom` for resources given one by one.
    pub seconds: BTreeMap<String, f64>,
    /// Seconds times memory, in GiB.
    pub gb_seconds: f64,
}

impl SessionFigures {
    /// Adds other sums to these.
    pub fn add(&mut self, other: &Self) {
        for (size, seconds) in &other.seconds {
            *self.seconds.entry(size.clone()).or_default() += seconds;
        }
        self.gb_seconds += other.gb_seconds;
    }
}

/// Whole hours, from the first to before the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Where it begins.
    pub from: DateTime<Utc>,
    /// Where it ends; not part of it.
    pub to: DateTime<Utc>,
}

impl Period {
    /// The whole hours that touch this time.
    #[must_use]
    pub fn around(from: DateTime<Utc>, to: DateTime<Utc>) -> Self {
        let to_hour = hour_of(to);
        Self { from: hour_of(from), to: if to_hour == to { to } else { to_hour + TimeDelta::hours(1) } }
    }
}

/// The hour (UTC) that a time lies in.
#[must_use]
pub fn hour_of(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(at.timestamp().div_euclid(3_600) * 3_600, 0).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_stands_for_its_durations_within_ten_percent(duration_ms in 20_u64..600_000) {
            let shown = duration_of_class(duration_class(duration_ms)) as f64;
            let error = (shown - duration_ms as f64).abs() / duration_ms as f64;
            prop_assert!(error < 0.1, "{duration_ms} is shown as {shown}");
        }

        #[test]
        fn percentiles_rise_and_lie_among_the_durations(durations in prop::collection::vec(0_u64..600_000, 1..200)) {
            let mut figures = CallFigures::default();
            for duration in &durations {
                *figures.durations.entry(duration_class(*duration)).or_default() += 1;
            }
            let at = |part| figures.percentile(part).expect("some ran");
            prop_assert!(at(0.0) <= at(0.5) && at(0.5) <= at(0.95) && at(0.95) <= at(1.0));
            let longest = durations.iter().max().copied().unwrap_or_default();
            prop_assert_eq!(at(1.0), duration_of_class(duration_class(longest)));
        }
    }

    #[test]
    fn calls_that_never_ran_have_no_duration_and_denied_ones_are_no_errors() {
        let figures = CallFigures {
            calls: 10,
            denied: 6,
            failed: 1,
            durations: BTreeMap::from([(NEVER_RAN, 7)]),
            ..CallFigures::default()
        };
        assert_eq!((figures.percentile(0.5), figures.error_rate()), (None, Some(0.25)));
        assert_eq!(CallFigures::default().error_rate(), None);
    }

    #[test]
    fn a_period_is_whole_hours() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().expect("a time");
        let period = Period::around(at("2026-01-01T10:20:00Z"), at("2026-01-01T12:00:01Z"));
        assert_eq!(period, Period { from: at("2026-01-01T10:00:00Z"), to: at("2026-01-01T13:00:00Z") });
        let whole = Period { from: at("2026-01-01T10:00:00Z"), to: at("2026-01-01T12:00:00Z") };
        assert_eq!(Period::around(whole.from, whole.to), whole);
    }
}
