//! What `packages` may name, and how it gets into the session: with uv, from a folder of wheels, never through a shell.
//!
//! # Design notes
//!
//! *A subset of PEP 508*: name, extras, versions, markers. No URLs, no paths, no options: a requirement names a package and
//! nothing of this machine. It reaches uv as arguments after `--`.
//! *Into the user's own folder* (`/workspace/.local`), which Python looks at before that of the image: what a session
//! installs is there for its later calls, for `bash` too, and goes with its workspace.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use domain::Code;
use regex::Regex;
use serde_json::json;

use crate::port::{Background, Captured, Command, CommandEnd, CommandOutcome, Program};
use crate::{ArgumentProblem, Context, ToolError, path};

/// Most packages that one call names.
pub(crate) const PACKAGES: usize = 32;
/// Longest requirement, in characters.
pub(crate) const REQUIREMENT_CHARS: usize = 200;
/// Where the image keeps its wheels.
const WHEELS: &str = "/opt/toolhost/wheels";
const INSTALL: &str = include_str!("code/install.py");
/// Bytes of uv's words that an error repeats.
const SAID_BYTES: usize = 2_000;

static REQUIREMENT: LazyLock<Regex> = LazyLock::new(|| {
    let version = r"(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9][A-Za-z0-9.*+!_-]*";
    let pattern = format!(
        r#"^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) *(?:\[ *[A-Za-z0-9._-]+(?: *, *[A-Za-z0-9._-]+)* *\])? *(?:{version}(?: *, *{version})*)? *(?:; *[A-Za-z0-9_ .'"<>=!()-]+)?$"#
    );
    Regex::new(&pattern).expect("a fixed pattern")
});

/// Problems of the requirements.
pub(crate) fn check(field: &str, packages: &[String]) -> Vec<ArgumentProblem> {
    let wrong = packages.iter().enumerate().filter(|(_, package)| name_of(package).is_none());
    wrong
        .map(|(index, _)| {
            let message = "is not a requirement: a name with optional extras, versions and marker, such as `pandas`, \
                `requests[socks]>=2.31,<3` or `tomli; python_version < \"3.11\"`; no URL, path or option";
            ArgumentProblem::new(format!("/{field}/{index}"), message)
        })
        .collect()
}

fn name_of(package: &str) -> Option<&str> {
    let fits = package.len() <= REQUIREMENT_CHARS;
    let found = REQUIREMENT.captures(package).filter(|_| fits)?;
    Some(found.get(1)?.as_str())
}

/// Installs what is not there yet.
pub(crate) async fn install(cx: &Context, packages: &[String]) -> Result<(), ToolError> {
    if packages.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = packages.iter().filter_map(|package| name_of(package)).collect();
    let request = json!({"packages": packages, "names": names, "wheels": WHEELS});
    let argv = ["python3", "-X", "utf8", "-c", INSTALL].map(str::to_owned).to_vec();
    let command = Command {
        terminal: None,
        program: Program::Argv { argv, script: Some(request.to_string()) },
        cwd: path::WORKSPACE.to_owned(),
        env: BTreeMap::new(),
        stdin: None,
        background: Background::Never,
        label: "packages".to_owned(),
    };
    match cx.sandbox.run(command).await? {
        CommandOutcome::Ended(end) => verdict(&end),
        CommandOutcome::Shell { .. } => {
            Err(ToolError::new(Code::PlatformError, "python_execute: the installation became a shell"))
        }
    }
}

fn verdict(end: &CommandEnd) -> Result<(), ToolError> {
    let said = said(&end.stderr);
    let failed = |code, message: &str, hint: &str| {
        Err(ToolError::new(code, format!("python_execute: {message}"))
            .hint(hint)
            .details(json!({"said": said})))
    };
    match end.exit_code {
        Some(0) => Ok(()),
        _ if end.timed_out => {
            Err(ToolError::new(Code::Timeout, "python_execute: installing the packages took too long")
                .fate(crate::Fate::TimedOut))
        }
        _ if end.cancelled => {
            Err(ToolError::new(Code::Cancelled, "python_execute: cancelled while it installed packages")
                .fate(crate::Fate::Cancelled))
        }
        Some(10) => failed(
            Code::NetworkRequired,
            "a package is not among the wheels of this sandbox, and the session has no network to get it",
            "Use what the image has (numpy, pandas, matplotlib, …) or a wheel of /opt/toolhost/wheels; check the name and the version.",
        ),
        Some(11) => failed(
            Code::PackageFailed,
            "the packages do not fit together or not this Python",
            "Loosen the versions; `details.said` has the reason.",
        ),
        Some(12) => failed(
            Code::PackageFailed,
            "a package did not build",
            "Use a version that has a wheel; `details.said` has the reason.",
        ),
        Some(13) => failed(
            Code::PackageFailed,
            "this image has no uv to install packages with",
            "Use an image that has the packages, or the default image.",
        ),
        _ => failed(
            Code::PackageFailed,
            "the packages could not be installed",
            "`details.said` has the reason.",
        ),
    }
}

fn said(stderr: &Captured) -> String {
    let bytes = if stderr.tail.is_empty() { &stderr.head } else { &stderr.tail };
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SAID_BYTES)..]).replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_name_packages_and_nothing_else() {
        for good in [
            "pandas",
            "python-slugify",
            "zope.interface",
            "requests[socks]>=2.31,<3",
            "requests [ socks , security ] == 2.*",
            "tomli ~= 2.0; python_version < \"3.11\"",
            "a",
            "x===1.0+local.1",
            "numpy!=2.0.0",
        ] {
            assert!(name_of(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "-r requirements.txt",
            "--index-url=http://x",
            "./x",
            "/tmp/x.whl",
            "x @ https://example.com/x.whl",
            "git+https://example.com/x",
            "https://example.com/x.whl",
            "x y",
            "x\n--index-url http://x",
            "x;$(id)",
            "x==",
            "x[",
            "x>=1 --hash=sha256:0",
            "näh",
            &"x".repeat(201),
        ] {
            assert!(name_of(bad).is_none(), "{bad}");
        }
        assert_eq!(check("packages", &["ok".to_owned(), "-x".to_owned()])[0].pointer, "/packages/1");
    }
}
