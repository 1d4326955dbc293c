//! A wheel: a built Python package that a tenant keeps for the sessions of its own.
//!
//! # Design notes
//!
//! Names are kept in one form (PEP 427 with the project's name by PEP 503, in lower case), so that two spellings of one wheel are one
//! wheel, and what was put as `Foo.Bar-1.0-…` cannot stand beside another `foo_bar-1.0-…`. Versions are compared by the
//! sandbox's own libraries; here they are text.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};

use crate::limits::WHEEL_NAME_BYTES;
use crate::{TenantId, WheelId};

/// The name of a wheel's file, in its one form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WheelName {
    file: String,
    /// Bytes of `file` that are the project.
    project: usize,
    /// Bytes of `file` that are the version, behind the project and a dash.
    version: usize,
}

/// Why a text is no name of a wheel. Its sentence repeats nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a wheel's name is `{{project}}-{{version}}(-{{build}})-{{python}}-{{abi}}-{{platform}}.whl`, such as `humanize-4.17.0-py3-none-any.whl`, \
     of at most {} bytes",
    WHEEL_NAME_BYTES
)]
pub struct WheelNameError;

impl WheelName {
    /// The file's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.file
    }

    /// The project, as requirements name it: `python-slugify`.
    #[must_use]
    pub fn project(&self) -> String {
        self.file[..self.project].replace('_', "-")
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.file[self.project + 1..self.project + 1 + self.version]
    }
}

/// The name of a project, as requirements may spell it, in its one form (PEP 503). Any text has one; that of no project is nobody's.
#[must_use]
pub fn project_name(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '-' | '_' | '.' if name.ends_with('-') => {}
            '-' | '_' | '.' => name.push('-'),
            other => name.push(other.to_ascii_lowercase()),
        }
    }
    name
}

impl FromStr for WheelName {
    type Err = WheelNameError;

    fn from_str(text: &str) -> Result<Self, WheelNameError> {
        if text.len() > WHEEL_NAME_BYTES {
            return Err(WheelNameError);
        }
        let text = text.to_ascii_lowercase();
        let parts: Vec<&str> = text.strip_suffix(".whl").ok_or(WheelNameError)?.split('-').collect();
        let (project, version, build, tags) = match parts[..] {
            [project, version, python, abi, platform] => (project, version, None, [python, abi, platform]),
            [project, version, build, python, abi, platform] => {
                (project, version, Some(build), [python, abi, platform])
            }
            _ => return Err(WheelNameError),
        };
        let is_good = is_word(project, b"._")
            && is_word(version, b"._!+")
            && version.as_bytes()[0].is_ascii_digit()
            && build.is_none_or(|build| is_word(build, b"._") && build.as_bytes()[0].is_ascii_digit())
            && tags.iter().all(|tag| is_word(tag, b"._"));
        if !is_good {
            return Err(WheelNameError);
        }
        let project = project_name(project).replace('-', "_");
        let rest = [version].into_iter().chain(build).chain(tags).collect::<Vec<_>>().join("-");
        let file = format!("{project}-{rest}.whl");
        Ok(Self { file, project: project.len(), version: version.len() })
    }
}

/// Letters and digits, with some others between them.
fn is_word(text: &str, also: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || also.contains(byte))
}

impl fmt::Display for WheelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)
    }
}

/// A wheel of a tenant. Its content never changes; another one under its name needs it to be deleted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    /// Its id.
    pub id: WheelId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// Its name.
    pub name: WheelName,
    /// Bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, in hex.
    pub sha256: String,
    /// When it was put here.
    pub created_at: DateTime<Utc>,
    /// When a session last got it.
    pub last_used_at: Option<DateTime<Utc>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wheel_is_known_by_its_project_and_version() {
        for (given, file, project, version) in [
            ("humanize-4.17.0-py3-none-any.whl", "humanize-4.17.0-py3-none-any.whl", "humanize", "4.17.0"),
            (
                "Zope.Interface-7.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                "zope_interface-7.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
                "zope-interface",
                "7.2",
            ),
            (
                "a__b-1!2.0rc1+Local.1-7x-py2.py3-none-any.WHL",
                "a_b-1!2.0rc1+local.1-7x-py2.py3-none-any.whl",
                "a-b",
                "1!2.0rc1+local.1",
            ),
        ] {
            let name: WheelName = given.parse().expect(given);
            assert_eq!((name.as_str(), name.project().as_str(), name.version()), (file, project, version));
        }
    }

    #[test]
    fn what_is_no_wheel_has_no_name() {
        for bad in [
            "",
            ".whl",
            "humanize.whl",
            "humanize-4.17.0.tar.gz",
            "humanize-4.17.0-py3-none.whl",
            "humanize-4.17.0-py3-none-any-any-any.whl",
            "humanize-latest-py3-none-any.whl",
            "humanize-4.17.0-build-py3-none-any.whl",
            "-4.17.0-py3-none-any.whl",
            "humanize--py3-none-any.whl",
            "../humanize-4.17.0-py3-none-any.whl",
            "a/b-4.17.0-py3-none-any.whl",
            "..-4.17.0-py3-none-any.whl",
            "human ize-4.17.0-py3-none-any.whl",
            "größe-4.17.0-py3-none-any.whl",
            "humanize-4.17.0-py3-none-any.whl\0",
            "humanize-4.17.0-py3-none-any.whl/",
        ] {
            assert_eq!(bad.parse::<WheelName>(), Err(WheelNameError), "{bad}");
        }
        assert!(format!("{}-1-py3-none-any.whl", "x".repeat(WHEEL_NAME_BYTES)).parse::<WheelName>().is_err());
    }

    proptest! {
        #[test]
        fn a_name_is_its_own_form(text in "[A-Za-z0-9._-]{1,12}-[0-9][0-9a-z.]{0,3}-py3-none-any.whl") {
            if let Ok(name) = text.parse::<WheelName>() {
                prop_assert_eq!(name.as_str().parse::<WheelName>(), Ok(name.clone()));
                prop_assert!(!name.as_str().contains(['/', '\0']) && !name.as_str().starts_with('.'));
                prop_assert_eq!(project_name(&name.project()), name.project());
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = (text.parse::<WheelName>(), project_name(&text));
        }
    }
}
