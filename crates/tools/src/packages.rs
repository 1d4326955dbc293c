//! What `packages` may name, and how it gets into the session: with uv, from wheels of the image and the tenant, never through a shell.
//!
//! # Design notes
//!
//! *A subset of PEP 508*: name, extras, versions, markers. No URLs, no paths, no options: a requirement names a package and
//! nothing of this machine. It reaches uv as arguments after `--`.
//! *Into the user's own folder* (`/workspace/.local`), which Python looks at before that of the image: what a session
//! installs is there for its later calls, for `bash` too, and goes with its workspace.
//! *The tenant's wheels come when they are asked for.* Which ones that are only what is in them can say, and nobody opens a wheel outside of
//! a sandbox: so the installer asks for those that it sees to be missing, gets copies, and is started again, until nothing is missing.
//! What it asks is a text of the sandbox: it can name wheels of the tenant's own alone, and each once. Which of the names are the tenant's is for
//! [`crate::port::Wheels::copy`] to say: here a name keeps its place whatever the tenant has by now, so that a call that is run again asks for the
//! same in the same order. What is told are the wheels that came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use domain::Code;
use domain::limits::{WHEEL_ROUNDS, WHEELS_AT_ONCE};
use regex::Regex;
use serde_json::json;

use crate::port::{
    Background, Captured, Command, CommandEnd, CommandOutcome, FileRemoval, Program, RemoveTarget,
    SandboxPath, WheelFile,
};
use crate::{ArgumentProblem, Context, Fate, ToolError, path};

/// Most packages that one call names.
pub(crate) const PACKAGES: usize = 32;
/// Longest requirement, in characters.
pub(crate) const REQUIREMENT_CHARS: usize = 200;
/// Where the image keeps its wheels.
const WHEELS: &str = "/opt/toolhost/wheels";
const INSTALL: &str = include_str!("code/install.py");
const SHELF: &str = include_str!("code/shelf.py");
/// How the installer ends when it asks for wheels.
const ASKS: Option<i32> = Some(14);
/// Names of so many wheels, as JSON at its longest.
const ASKED_BYTES: u64 = 64 * 1024;
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
    let cache = cx.wheels.list().await?;
    let copies = SandboxPath { root: "/tmp", relative: format!(".toolhost-wheels-{}", cx.call_id) };
    let mut end = run(cx, packages, &cache, &copies, 0).await?;
    if end.exit_code != ASKS {
        return verdict(&end);
    }
    let mut got = BTreeSet::new();
    let installed = async {
        for turn in 1..=WHEEL_ROUNDS {
            let names = asked(cx, &copies, turn - 1, &mut got).await?;
            let copied = cx.wheels.copy(&names, &copies).await?;
            if !copied.is_empty() {
                cx.events.progress(Some(told(&copied)), None).await?;
            }
            end = run(cx, packages, &cache, &copies, turn).await?;
            if end.exit_code != ASKS {
                break;
            }
        }
        verdict(&end)
    };
    let installed = installed.await;
    let removal = FileRemoval { path: copies, target: RemoveTarget::Tree, expected_sha256: None };
    match cx.sandbox.remove(removal).await {
        Err(error) if error.fate == Fate::Abandoned => Err(error),
        // What is left of them is removed by a later installation.
        _ => installed,
    }
}

/// One run of the installer.
async fn run(
    cx: &Context,
    packages: &[String],
    cache: &[WheelFile],
    copies: &SandboxPath,
    turn: u32,
) -> Result<CommandEnd, ToolError> {
    let names: Vec<&str> = packages.iter().filter_map(|package| name_of(package)).collect();
    let cache: Vec<_> = cache.iter().map(|wheel| json!([wheel.name, wheel.size_bytes])).collect();
    let request = json!({
        "packages": packages, "names": names, "wheels": WHEELS,
        "cache": cache, "copies": path::absolute(copies), "turn": turn, "most": WHEELS_AT_ONCE,
    });
    let argv = ["python3", "-X", "utf8", "-c", INSTALL, SHELF].map(str::to_owned).to_vec();
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
        CommandOutcome::Ended(end) => Ok(end),
        CommandOutcome::Shell { .. } => {
            Err(ToolError::new(Code::PlatformError, "python_execute: the installation became a shell"))
        }
    }
}

/// What the installer asks for, as far as it has not been asked for before. It is not compared with what the tenant has now.
async fn asked(
    cx: &Context,
    copies: &SandboxPath,
    turn: u32,
    got: &mut BTreeSet<String>,
) -> Result<Vec<String>, ToolError> {
    let relative = format!("{}/asked-{turn}", copies.relative);
    let file = SandboxPath { root: copies.root, relative };
    let content = match cx.sandbox.read(&file, 0, ASKED_BYTES).await {
        Ok(content) => content,
        // Who runs the call again finds the runs of the one before in the journal, and the folder gone.
        Err(error) if error.code == Code::PathNotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names: Vec<String> = serde_json::from_slice(&content.bytes).unwrap_or_default();
    Ok(names.into_iter().filter(|name| got.insert(name.clone())).take(WHEELS_AT_ONCE as usize).collect())
}

fn told(names: &[String]) -> String {
    let shown = names.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if names.len() > 5 { ", …" } else { "" };
    format!("{} of the tenant's wheels: {shown}{more}", names.len())
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
            "a package is not among the wheels of this sandbox and the tenant, and the session has no network to get it",
            "Use what the image has (numpy, pandas, matplotlib, …) or a wheel of /opt/toolhost/wheels; check the name and the version. \
             Who runs the tenant can put a wheel there for all its sessions (PUT /v1/wheels/{file_name}).",
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
        ASKS => failed(
            Code::PackageFailed,
            "the packages need more of the tenant's wheels than one installation gets",
            "Install what they depend on in calls of its own first.",
        ),
        Some(15) => failed(
            Code::PackageFailed,
            "a wheel of the tenant is damaged",
            "`details.said` names it. Who runs the tenant has to delete it and put it again (/v1/wheels/{file_name}).",
        ),
        Some(16) => failed(
            Code::PackageFailed,
            "the sandbox has no room for the packages",
            "Wheels are unpacked in /tmp, which has half of the sandbox's memory: remove files there and in /workspace, or use a larger session.",
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
