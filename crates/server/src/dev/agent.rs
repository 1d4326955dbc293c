//! Finds the agent's binary: where it was said to be, beside this program, or where `make agent` puts it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const NAME: &str = "toolhost-agent";

pub(super) fn find(configured: &Path) -> Result<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(NAME)));
    let above = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.parent()?.join(NAME)));
    let candidates = [Some(configured.to_owned()), above, beside];
    for candidate in candidates.into_iter().flatten() {
        if candidate.is_file() {
            return Ok(candidate.canonicalize()?);
        }
    }
    bail!(
        "the agent's binary is missing: {} (hint: `make agent` builds it, TOOLHOST_AGENT_PATH says where it is)",
        configured.display()
    )
}
