//! Which distributed trace something belongs to (W3C Trace Context), and the port to whoever records traces.
//!
//! # Design notes
//!
//! The rooms know no tracing system: they make `tracing` spans and say through [`Traces`] whose children those are. What crosses
//! processes is a [`TraceContext`], kept in the call's row. Both calls of the port are about the span that the thread is in.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};

/// A place in a trace, as `traceparent` writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace. Never 0.
    pub trace_id: u128,
    /// The span that what follows belongs under. Never 0.
    pub span_id: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

/// The text is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of the W3C's Trace Context")]
pub struct NotATraceparent;

/// Version, trace, span and flags with their dashes.
const LENGTH: usize = 55;

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    /// Reads version 00, and of later versions the part that is the same.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.as_bytes();
        let later = bytes.get(..2) != Some(b"00");
        let whole = bytes.len() == LENGTH || later && bytes.get(LENGTH) == Some(&b'-');
        let dashes = [2, 35, 52].iter().all(|place| bytes.get(*place) == Some(&b'-'));
        if !whole || !dashes || bytes.starts_with(b"ff") {
            return Err(NotATraceparent);
        }
        let hex = |from: usize, to: usize| -> Result<u128, NotATraceparent> {
            let digits = text.get(from..to).ok_or(NotATraceparent)?;
            let lower = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if !lower {
                return Err(NotATraceparent);
            }
            u128::from_str_radix(digits, 16).map_err(|_| NotATraceparent)
        };
        hex(0, 2)?;
        let (trace_id, span_id, flags) = (hex(3, 35)?, hex(36, 52)?, hex(53, 55)?);
        let span_id = u64::try_from(span_id).map_err(|_| NotATraceparent)?;
        if trace_id == 0 || span_id == 0 {
            return Err(NotATraceparent);
        }
        Ok(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl TraceContext {
    /// The trace's id, as it is searched for.
    #[must_use]
    pub fn trace(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

/// Something that is over, or happened where no span could be: a wait in a queue, a process in a sandbox.
#[derive(Debug, Clone)]
pub struct PastSpan {
    /// What it was.
    pub name: &'static str,
    /// What it belongs under; the span that the thread is in when not said.
    pub under: Option<TraceContext>,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: DateTime<Utc>,
    /// What is known of it. Never an argument or output.
    pub facts: Vec<(&'static str, String)>,
}

/// Whoever records traces. None of these blocks.
pub trait Traces: Send + Sync {
    /// The span that the thread is in goes on from there. To be called before anything else is done in it.
    fn adopt(&self, parent: TraceContext);

    /// Where the thread is; `None` when nothing is recorded.
    fn current(&self) -> Option<TraceContext>;

    /// Something that is over.
    fn past(&self, span: PastSpan);
}

/// For processes that record none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTraces;

impl Traces for NoTraces {
    fn adopt(&self, _: TraceContext) {}

    fn current(&self) -> Option<TraceContext> {
        None
    }

    fn past(&self, _: PastSpan) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_the_standard_calls_wrong_is_refused() {
        assert!(GOOD.parse::<TraceContext>().is_ok());
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(wrong.parse::<TraceContext>(), Err(NotATraceparent), "{wrong}");
        }
        let later = format!("cc{}-what-comes-later", &GOOD[2..]);
        assert_eq!(later.parse::<TraceContext>(), GOOD.parse());
    }

    proptest! {
        #[test]
        fn a_context_reads_as_it_is_written(trace_id in 1..=u128::MAX, span_id in 1..=u64::MAX, sampled: bool) {
            let context = TraceContext { trace_id, span_id, sampled };
            prop_assert_eq!(context.to_string().parse(), Ok(context));
        }

        #[test]
        fn no_text_breaks_it(text in ".{0,80}") {
            let _ = text.parse::<TraceContext>();
        }
    }
}
