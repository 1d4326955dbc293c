//! Paths as text: what a tool may name. The boundary itself is the container; these checks only make better messages.

use domain::Code;

use crate::port::SandboxPath;
use crate::{ArgumentProblem, ToolError};

/// Where relative paths start.
pub(crate) const WORKSPACE: &str = "/workspace";
const ROOTS: [&str; 2] = [WORKSPACE, "/tmp"];
/// Longest path, in bytes (the kernel's PATH_MAX).
const PATH_BYTES: usize = 4_096;

/// What is wrong with a path whatever is there.
pub(crate) fn check(argument: &str, path: &str) -> Option<ArgumentProblem> {
    let message = if path.is_empty() {
        "must not be empty; use `.` for the working directory".to_owned()
    } else if path.len() > PATH_BYTES {
        format!("must be at most {PATH_BYTES} bytes long")
    } else {
        return None;
    };
    Some(ArgumentProblem::new(crate::admission::pointer(&[argument]), message))
}

/// The place that a path names. `.` and `..` are resolved as text, before any link is followed.
pub(crate) fn resolve(tool: &str, path: &str) -> Result<SandboxPath, ToolError> {
    let mut steps: Vec<&str> = Vec::new();
    let start = if path.starts_with('/') { "" } else { WORKSPACE };
    for step in start.split('/').chain(path.split('/')) {
        match step {
            "" | "." => {}
            ".." => {
                steps.pop();
            }
            step => steps.push(step),
        }
    }
    let root =
        steps.first().and_then(|first| ROOTS.into_iter().find(|root| root.strip_prefix('/') == Some(*first)));
    match root {
        Some(root) => Ok(SandboxPath { root, relative: steps[1..].join("/") }),
        None => Err(ToolError::new(
            Code::PathOutsideWorkspace,
            format!("{tool}: `{}` is outside of /workspace and /tmp", crate::clean::one_line(path)),
        )
        .hint("Use a path under /workspace (relative paths start there) or /tmp; `bash` can copy a file from elsewhere.")),
    }
}

/// A directory of the sandbox that a caller names, as the sandbox writes it; or what is wrong with it.
pub fn sandbox_directory(path: &str) -> Result<String, String> {
    if let Some(problem) = check("cwd", path) {
        return Err(problem.message);
    }
    resolve("cwd", path).map(|place| absolute(&place)).map_err(|error| error.message)
}

/// The place in the sandbox that a caller names; relative paths start at `/workspace`. Links are the sandbox's own matter.
///
/// # Errors
/// When it is empty, too long, or outside of `/workspace` and `/tmp`.
pub fn sandbox_path(path: &str) -> Result<SandboxPath, ToolError> {
    if let Some(problem) = check("path", path) {
        return Err(ToolError::new(Code::InvalidPath, format!("The path {}.", problem.message)));
    }
    resolve("The path", path)
}

/// The path as the sandbox writes it.
pub(crate) fn absolute(path: &SandboxPath) -> String {
    if path.relative.is_empty() { path.root.to_owned() } else { format!("{}/{}", path.root, path.relative) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_taken_as_a_shell_would() {
        for (path, place) in [
            (".", "/workspace"),
            ("a/./b//c/", "/workspace/a/b/c"),
            ("a/../b", "/workspace/b"),
            ("/workspace", "/workspace"),
            ("/workspace/../tmp/x", "/tmp/x"),
            ("../tmp", "/tmp"),
            ("//tmp//x", "/tmp/x"),
            ("a\\b", "/workspace/a\\b"),
            ("...", "/workspace/..."),
        ] {
            assert_eq!(absolute(&resolve("read_file", path).expect(path)), place, "{path}");
        }
    }

    #[test]
    fn a_path_outside_is_a_failed_call() {
        for path in
            ["/", "/etc/passwd", "..", "../..", "../workspace2/x", "/workspace/../../etc", "/tmpx", "/../.."]
        {
            let error = resolve("read_file", path).expect_err(path);
            assert_eq!(error.code, Code::PathOutsideWorkspace, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_leaves_the_roots(path in "[./a-c]{0,40}|/(workspace|tmp|etc)[./a-c]{0,40}") {
            if let Ok(place) = resolve("read_file", &path) {
                prop_assert!(ROOTS.contains(&place.root));
                prop_assert!(place.relative.split('/').all(|step| step != ".." && step != "."));
                prop_assert!(!place.relative.starts_with('/'));
            }
        }
    }
}
