//! JSON pointers (RFC 6901).

use std::fmt;

/// A place in a JSON document. `Display` gives the pointer, with control characters made visible.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pointer {
    steps: Vec<Step>,
}

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Into an object.
    Key(String),
    /// Into an array.
    Index(usize),
}

impl Pointer {
    /// The steps from the root on.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(crate) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.steps.pop()
    }

    /// Raises the index of the step that a walk over an array stands on.
    pub(crate) fn next_index(&mut self) {
        if let Some(Step::Index(index)) = self.steps.last_mut() {
            *index += 1;
        }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                Step::Key(key) => write!(f, "/{}", escape(key))?,
                Step::Index(index) => write!(f, "/{index}")?,
            }
        }
        Ok(())
    }
}

/// A key as a reference token. What cannot be shown is replaced, so that a pointer can be logged and stored.
pub(crate) fn escape(key: &str) -> String {
    let visible: String = key.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    visible.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_escaped_and_printable() {
        let mut pointer = Pointer::default();
        pointer.push(Step::Key("a/b~c\0".to_owned()));
        pointer.push(Step::Index(3));
        assert_eq!(pointer.to_string(), "/a~1b~0c\u{fffd}/3");
    }
}
