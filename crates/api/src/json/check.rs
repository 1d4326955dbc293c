//! Checks of decoded requests against fixed limits; all of them are made, and all that fail are told.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use domain::{Code, limits};

use super::pointer::escape;
use crate::problem::{FieldCode, FieldError, Problem};

/// Gathers what is wrong with a request.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    errors: Vec<FieldError>,
    /// Errors beyond those that are listed.
    left_out: usize,
    /// Whether something is invalid however its field's code reads.
    invalid: bool,
    /// A refusal of another kind, which says more than that something is invalid.
    lead: Option<Problem>,
}

/// Errors that are listed at most.
const LISTED: usize = 100;

/// Which names a map may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// 1 to 64 characters without control characters.
    Label,
    /// A name that a shell can have.
    Variable,
}

impl Checks {
    /// Adds one wrong value, unless it or what it is part of is known not to be there at all.
    pub(crate) fn add(&mut self, pointer: impl Into<String>, code: FieldCode, message: impl Into<String>) {
        let pointer = pointer.into();
        if self.covers(&pointer) {
            return;
        }
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        self.errors.push(FieldError { pointer, code, message: message.into() });
    }

    /// Whether a value is missing or of another type, or within one that is.
    pub(crate) fn covers(&self, pointer: &str) -> bool {
        self.errors.iter().any(|error| {
            matches!(error.code, FieldCode::Required | FieldCode::WrongType)
                && pointer
                    .strip_prefix(&error.pointer)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Whether anything is wrong with a value or a part of it.
    pub(crate) fn within(&self, pointer: &str) -> bool {
        let part = |error: &FieldError| {
            error.pointer.strip_prefix(pointer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.errors.iter().any(part)
    }

    /// Whether as many are listed as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() >= LISTED
    }

    /// Adds what somebody else found.
    pub(crate) fn absorb(&mut self, mut problem: Problem) {
        for error in std::mem::take(&mut problem.errors) {
            self.add(error.pointer, error.code, error.message);
        }
        match problem.code {
            Code::InvalidArguments => self.invalid = true,
            Code::LimitExceeded => {}
            _ => {
                self.lead.get_or_insert(problem);
            }
        }
    }

    /// A number within a range: below is invalid, above is over a limit.
    pub(crate) fn range<T>(&mut self, pointer: &str, value: Option<T>, range: RangeInclusive<T>)
    where
        T: PartialOrd + std::fmt::Display,
    {
        let Some(value) = value else { return };
        if value > *range.end() {
            self.add(pointer, FieldCode::LimitExceeded, format!("must be at most {}", range.end()));
        } else if !range.contains(&value) {
            self.add(pointer, FieldCode::Invalid, format!("must be at least {}", range.start()));
        }
    }

    /// Text of a length, in characters.
    pub(crate) fn text(&mut self, pointer: &str, text: Option<&str>, chars: RangeInclusive<usize>) {
        let Some(text) = text else { return };
        let count = text.chars().count();
        if count > *chars.end() {
            self.add(
                pointer,
                FieldCode::LimitExceeded,
                format!("must have at most {} characters", chars.end()),
            );
        } else if count < *chars.start() {
            self.add(pointer, FieldCode::Invalid, "must not be empty");
        }
    }

    /// Labels of a caller.
    pub(crate) fn metadata(&mut self, pointer: &str, metadata: Option<&BTreeMap<String, String>>) {
        let Some(metadata) = metadata else { return };
        if metadata.len() > limits::METADATA_PAIRS {
            let message = format!("must have at most {} entries", limits::METADATA_PAIRS);
            self.add(pointer, FieldCode::LimitExceeded, message);
        }
        for (name, value) in metadata {
            let at = format!("{pointer}/{}", escape(name));
            self.name(&at, name, NameRule::Label);
            self.text(&at, Some(value), 0..=limits::METADATA_VALUE_CHARS);
        }
    }

    /// Environment of commands.
    pub(crate) fn env(&mut self, pointer: &str, env: &BTreeMap<String, String>) {
        if env.len() > limits::ENV_PAIRS {
            let message = format!("must have at most {} entries", limits::ENV_PAIRS);
            self.add(pointer, FieldCode::LimitExceeded, message);
        }
        for (name, value) in env {
            let at = format!("{pointer}/{}", escape(name));
            self.name(&at, name, NameRule::Variable);
            if name.len() + value.len() > limits::ENV_BYTES {
                let message = format!("must have at most {} bytes with its name", limits::ENV_BYTES);
                self.add(at, FieldCode::LimitExceeded, message);
            }
        }
    }

    fn name(&mut self, at: &str, name: &str, rule: NameRule) {
        match rule {
            NameRule::Label => {
                if name.is_empty() || name.chars().any(char::is_control) {
                    self.add(at, FieldCode::Invalid, "the name must not be empty or have control characters");
                }
                if name.chars().count() > limits::METADATA_KEY_CHARS {
                    let message =
                        format!("the name must have at most {} characters", limits::METADATA_KEY_CHARS);
                    self.add(at, FieldCode::LimitExceeded, message);
                }
            }
            NameRule::Variable => {
                let mut chars = name.chars();
                let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
                if !starts || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
                    self.add(
                        at,
                        FieldCode::Invalid,
                        "the name must be letters, digits and _, not starting with a digit",
                    );
                }
            }
        }
    }

    /// All that is wrong as one problem: `limit_exceeded` when nothing but limits is.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        if let Some(lead) = self.lead {
            return Err(lead.fields(self.errors));
        }
        let Some(first) = self.errors.first() else { return Ok(()) };
        let only_limits =
            !self.invalid && self.errors.iter().all(|error| error.code == FieldCode::LimitExceeded);
        let code = if only_limits { Code::LimitExceeded } else { Code::InvalidArguments };
        let more = match self.errors.len() + self.left_out {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let place =
            if first.pointer.is_empty() { "The body".to_owned() } else { format!("`{}`", first.pointer) };
        let detail = format!("{place}: {}{more}.", first.message);
        Err(Problem::new(code, detail).fields(self.errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_told_and_limits_have_their_own_code() {
        let mut checks = Checks::default();
        checks.range("/wait_ms", Some(60_001), 0..=60_000);
        assert_eq!(checks.finish().expect_err("above").code, Code::LimitExceeded);

        let mut checks = Checks::default();
        checks.range("/timeout_ms", Some(0), 1..=10);
        checks.text("/description", Some(&"x".repeat(201)), 0..=200);
        checks.env("/env", &BTreeMap::from([("1A".to_owned(), String::new())]));
        let problem = checks.finish().expect_err("three faults");
        assert_eq!(problem.code, Code::InvalidArguments);
        assert_eq!(problem.errors.len(), 3);
    }

    #[test]
    fn multi_byte_text_is_counted_in_characters() {
        let mut checks = Checks::default();
        checks.text("/description", Some(&"é".repeat(200)), 0..=200);
        assert!(checks.finish().is_ok());
    }
}
