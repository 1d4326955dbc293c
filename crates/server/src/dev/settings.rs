//! What `dev` decides beside the configuration: everything that an operator would have to, from the state folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::Uid;
use toml::{Table, Value};

use super::agent;
use crate::cli::DevArgs;
use crate::config::{Config, Secret};
use crate::place::{Place, short_hash};

/// The settings of the running installation, for other commands (`toolhost --config … admin`).
pub(super) const FILE: &str = "toolhost.toml";

/// Sockets of sandboxes lie a folder deeper (the sandbox's id and the socket's name), and their paths have at most
/// 107 bytes.
const LONGEST_RUNTIME_DIR: usize = 40;

pub(super) fn apply(config: &mut Config, arguments: &DevArgs, place: &Place) -> Result<()> {
    let defaults = Config::default();
    if let Some(listen) = arguments.listen {
        config.server.listen = listen;
    }
    if config.keys.pepper.is_none() {
        config.keys.pepper = Some(Secret::new(place.secret("pepper")?));
    }
    if config.stream_url.signing_key.is_none() {
        config.stream_url.signing_key = Some(Secret::new(place.secret("signing-key")?));
    }
    if config.worker.installation == defaults.worker.installation {
        config.worker.installation = place.installation();
    }
    if config.worker.host.is_none() {
        config.worker.host = Some("dev".to_owned());
    }
    // The default is root's to write.
    if config.sandbox.runtime_dir == defaults.sandbox.runtime_dir && !Uid::effective().is_root() {
        config.sandbox.runtime_dir = runtime_dir(&place.join("run"));
    }
    if config.sandbox.state_dir == defaults.sandbox.state_dir {
        config.sandbox.state_dir = place.join("sandboxes");
    }
    if config.artifacts.store == defaults.artifacts.store {
        config.artifacts.store = place.join("artifacts").display().to_string();
    }
    config.sandbox.agent_path = agent::find(&config.sandbox.agent_path)?;
    config.worker.end_sessions_at_exit = true;
    Ok(())
}

fn runtime_dir(wanted: &Path) -> PathBuf {
    if wanted.as_os_str().len() <= LONGEST_RUNTIME_DIR {
        wanted.to_owned()
    } else {
        PathBuf::from(format!("/tmp/toolhost-{}", short_hash(wanted)))
    }
}

/// Writes what another command needs to work on the same installation. Private: it has the secrets.
pub(super) fn keep(config: &Config, place: &Place) -> Result<()> {
    let secrets = [
        ("database", "url", &config.database.url),
        ("keys", "pepper", &config.keys.pepper),
        ("stream_url", "signing_key", &config.stream_url.signing_key),
    ];
    let mut tree = Table::new();
    for (section, key, secret) in secrets {
        let secret = secret.as_ref().with_context(|| format!("{section}.{key} is set by now"))?;
        let table = Table::from_iter([(key.to_owned(), Value::String(secret.expose().to_owned()))]);
        tree.insert(section.to_owned(), Value::Table(table));
    }
    let text = toml::to_string(&tree).context("the settings cannot be written as TOML")?;
    place.write_private(FILE, &format!("# Written by `toolhost dev` at each start.\n{text}"))
}
