//! Reads the tree: defaults, then the file, then the environment, each overriding the one before.
//!
//! # Design notes
//!
//! An unknown key is an error in both places, because a misspelt limit that silently does nothing is worse than a
//! refusal to start. Environment names therefore need the double underscore (`TOOLHOST_SERVER__LISTEN`) to count
//! as settings: names with a single one (`TOOLHOST_CONFIG`, `TOOLHOST_KEY`) belong to other purposes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::reference::{self, Kind};
use super::{Config, Secret};

const PREFIX: &str = "TOOLHOST_";

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{} is not valid TOML: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// No setting has this name.
    #[error("unknown setting `{key}` in {origin}; did you mean `{nearest}`?")]
    Unknown {
        /// The name as given.
        key: String,
        /// The file or the environment variable.
        origin: String,
        /// The most similar name.
        nearest: String,
    },
    /// A setting has a value that it cannot take.
    #[error("invalid configuration: {message}")]
    Invalid {
        /// Which and why.
        message: String,
    },
}

/// Where settings come from; injected so that tests need no process environment.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file, if one is to be read.
    pub file: Option<PathBuf>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
}

impl Sources {
    /// This process's environment, and the file named on the command line or by `TOOLHOST_CONFIG`.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>) -> Self {
        let env: BTreeMap<_, _> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let file =
            file.or_else(|| env.get("TOOLHOST_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from));
        Self { file, env }
    }
}

/// Reads the tree.
///
/// # Errors
/// When the file cannot be read, a key is unknown, or a value does not fit.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let mut tree = Table::new();
    if let Some(path) = &sources.file {
        tree = read_file(path)?;
        for key in leaves(&tree) {
            known(&key, &format!("{}", path.display()))?;
        }
    }
    for (name, text) in &sources.env {
        if let Some(key) = key_of(name) {
            let kind = known(&key, &format!("the environment variable {name}"))?;
            insert(&mut tree, &key, value_of(kind, text))?;
        }
    }
    let mut config: Config = Value::Table(tree)
        .try_into()
        .map_err(|error| ConfigError::Invalid { message: one_line(&error.to_string()) })?;
    apply_conventions(&mut config, &sources.env);
    check(&config)?;
    Ok(config)
}

/// Two names that others have given these settings already. The tree's own names win.
fn apply_conventions(config: &mut Config, env: &BTreeMap<String, String>) {
    let get = |name: &str| env.get(name).filter(|value| !value.is_empty());
    if config.database.url.is_none()
        && let Some(url) = get("DATABASE_URL")
    {
        config.database.url = Some(Secret::new(url));
    }
    if !env.contains_key("TOOLHOST_SANDBOX__AGENT_PATH")
        && let Some(path) = get("TOOLHOST_AGENT_PATH")
    {
        config.sandbox.agent_path = PathBuf::from(path);
    }
}

/// What types cannot say.
fn check(config: &Config) -> Result<(), ConfigError> {
    let problem = |message: &str| Err(ConfigError::Invalid { message: message.to_owned() });
    let name = &config.worker.installation;
    if name.is_empty()
        || name.len() > 40
        || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    {
        return problem("worker.installation is 1 to 40 letters, digits, `-` and `_`");
    }
    if config.database.max_connections < 4 {
        return problem("database.max_connections must be at least 4");
    }
    if config.worker.slots == 0 || config.worker.sessions == 0 {
        return problem("worker.slots and worker.sessions must be at least 1");
    }
    if config.retention.events_days > config.retention.calls_days {
        return problem(
            "retention.events_days must not exceed retention.calls_days: events go before their calls",
        );
    }
    if config.tls.certificate.is_some() != config.tls.key.is_some() {
        return problem("tls.certificate and tls.key are set together");
    }
    if !(0.0..=1.0).contains(&config.telemetry.sampling_ratio) {
        return problem("telemetry.sampling_ratio is a number from 0 to 1");
    }
    let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
    if config.telemetry.otlp_endpoint.as_ref().is_some_and(|endpoint| !is_url(endpoint)) {
        return problem(
            "telemetry.otlp_endpoint begins with https://, or http:// (a collector beside the process)",
        );
    }
    let internal = &config.internal;
    let given = [&internal.tls_certificate, &internal.tls_key, &internal.tls_ca];
    if given.iter().any(|file| file.is_some()) && given.iter().any(|file| file.is_none()) {
        return problem("internal.tls_certificate, internal.tls_key and internal.tls_ca are set together");
    }
    if config.retention.output_days > config.retention.events_days {
        return problem(
            "retention.output_days must not exceed retention.events_days: output goes before its events",
        );
    }
    if !(0.0..=1.0).contains(&config.capacity.pool_share) {
        return problem("capacity.pool_share is a part, 0 to 1");
    }
    if !config.capacity.cpu_overcommit.is_finite() || config.capacity.cpu_overcommit <= 0.0 {
        return problem("capacity.cpu_overcommit must be above 0");
    }
    if let Some(pepper) = &config.keys.pepper
        && pepper.expose().len() < 32
    {
        return problem("keys.pepper must have at least 32 characters");
    }
    if let Some(key) = &config.stream_url.signing_key
        && key.expose().len() < 32
    {
        return problem("stream_url.signing_key must have at least 32 characters");
    }
    if let Some(key) = &config.internal.key
        && key.expose().len() < 32
    {
        return problem("internal.key must have at least 32 characters");
    }
    if let Some(listen) = &config.internal.listen {
        if config.internal.key.is_none() {
            return problem("internal.listen needs internal.key");
        }
        if listen.ip().is_unspecified() && config.internal.advertise.is_none() {
            return problem("internal.listen is no address that others reach: set internal.advertise");
        }
    }
    if let Some(key) = &config.audit.signing_key
        && key.expose().len() < 32
    {
        return problem("audit.signing_key must have at least 32 characters");
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        message: one_line(error.message()),
    })
}

/// `TOOLHOST_SERVER__LISTEN` → `server.listen`; `None` for names that are no settings.
fn key_of(name: &str) -> Option<String> {
    let path = name.strip_prefix(PREFIX)?;
    path.contains("__").then(|| path.to_ascii_lowercase().replace("__", "."))
}

/// Dotted names of everything in the table that is not a table itself, or is a documented whole.
fn leaves(table: &Table) -> Vec<String> {
    fn walk(prefix: &str, table: &Table, into: &mut Vec<String>) {
        for (name, value) in table {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                Value::Table(inner) if reference::find(&key).is_none() && !inner.is_empty() => {
                    walk(&key, inner, into);
                }
                Value::Table(inner) if inner.is_empty() && reference::is_section(&key) => {}
                _ => into.push(key),
            }
        }
    }
    let mut keys = Vec::new();
    walk("", table, &mut keys);
    keys
}

fn known(key: &str, origin: &str) -> Result<Kind, ConfigError> {
    reference::find(key).map(|setting| setting.kind).ok_or_else(|| ConfigError::Unknown {
        key: key.to_owned(),
        origin: origin.to_owned(),
        nearest: reference::nearest(key).to_owned(),
    })
}

/// Text settings take the variable as it is; the others are TOML values, or text when they are not.
fn value_of(kind: Kind, text: &str) -> Value {
    let literal = || Value::String(text.to_owned());
    match kind {
        Kind::Text | Kind::Secret => literal(),
        Kind::Value => format!("value = {text}")
            .parse::<Table>()
            .ok()
            .and_then(|mut table| if table.len() == 1 { table.remove("value") } else { None })
            .unwrap_or_else(literal),
    }
}

fn insert(tree: &mut Table, key: &str, value: Value) -> Result<(), ConfigError> {
    match key.split_once('.') {
        None => {
            tree.insert(key.to_owned(), value);
            Ok(())
        }
        Some((section, rest)) => {
            match tree.entry(section.to_owned()).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(inner) => insert(inner, rest, value),
                _ => Err(ConfigError::Invalid { message: format!("`{section}` is a section, not a value") }),
            }
        }
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;

    fn from_env(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        load(&Sources { file: None, env })
    }

    fn from_file(text: &str, pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("toolhost.toml");
        std::fs::write(&path, text).expect("writes");
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        load(&Sources { file: Some(path), env })
    }

    #[test]
    fn nothing_said_is_the_defaults() {
        assert_eq!(from_env(&[]).expect("loads"), Config::default());
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let config = from_file(
            "[server]\nlisten = \"0.0.0.0:1\"\ndrain_ms = 5\n[policy.limits]\nsessions = 3\n",
            &[("TOOLHOST_SERVER__LISTEN", "127.0.0.1:2"), ("TOOLHOST_POLICY__LIMITS__SESSIONS", "4")],
        )
        .expect("loads");
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:2");
        assert_eq!(config.server.drain_ms, 5);
        assert_eq!(config.policy.limits.sessions, Some(4));
    }

    #[test]
    fn values_are_toml_and_text_is_text() {
        let config = from_env(&[
            ("TOOLHOST_KEYS__PEPPER", "12345678901234567890123456789012"),
            ("TOOLHOST_LOG__FORMAT", "json"),
            ("TOOLHOST_SANDBOX__POOL", "[{size = \"medium\", count = 2}]"),
            ("TOOLHOST_WORKER__HOST", "7"),
        ])
        .expect("loads");
        assert_eq!(config.keys.pepper, Some(Secret::new("12345678901234567890123456789012")));
        assert_eq!(config.log.format, LogFormat::Json);
        assert_eq!(config.sandbox.pool[0].count, 2);
        assert_eq!(config.worker.host.as_deref(), Some("7"));
    }

    #[test]
    fn unknown_keys_name_the_nearest_in_file_and_environment() {
        let error = from_file("[server]\nlisten_on = \"x\"\n", &[]).expect_err("is refused").to_string();
        assert!(error.contains("`server.listen_on`") && error.contains("`server.listen`"), "{error}");
        let error = from_env(&[("TOOLHOST_WORKER__SLOT", "3")]).expect_err("is refused").to_string();
        assert!(error.contains("TOOLHOST_WORKER__SLOT") && error.contains("`worker.slots`"), "{error}");
        let error = from_file("[servers]\n", &[]).expect_err("is refused").to_string();
        assert!(error.contains("`servers`"), "{error}");
    }

    #[test]
    fn names_with_one_underscore_are_not_settings() {
        assert!(from_env(&[("TOOLHOST_KEY", "th_x"), ("TOOLHOST_URL", "http://x")]).is_ok());
    }

    #[test]
    fn conventions_yield_to_the_tree() {
        let config =
            from_env(&[("DATABASE_URL", "postgres://a"), ("TOOLHOST_AGENT_PATH", "/agent")]).expect("loads");
        assert_eq!(config.database.url, Some(Secret::new("postgres://a")));
        assert_eq!(config.sandbox.agent_path, PathBuf::from("/agent"));
        let config =
            from_env(&[("DATABASE_URL", "postgres://a"), ("TOOLHOST_DATABASE__URL", "postgres://b")])
                .expect("loads");
        assert_eq!(config.database.url, Some(Secret::new("postgres://b")));
    }

    #[test]
    fn a_value_that_does_not_fit_is_named() {
        let error = from_env(&[("TOOLHOST_WORKER__SLOTS", "many")]).expect_err("is refused").to_string();
        assert!(error.contains("slots"), "{error}");
        let error = from_env(&[("TOOLHOST_KEYS__PEPPER", "short")]).expect_err("is refused").to_string();
        assert!(error.contains("32") && !error.contains("short"), "{error}");
    }

    #[test]
    fn proxies_are_addresses_and_networks() {
        let config = from_env(&[("TOOLHOST_SERVER__TRUSTED_PROXIES", "[\"10.0.0.0/8\", \"::1\"]")]);
        let proxies = config.expect("loads").server.trusted_proxies;
        assert_eq!(proxies.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "::1"]);
        let error = from_env(&[("TOOLHOST_SERVER__TRUSTED_PROXIES", "[\"ingress\"]")]);
        let error = error.expect_err("is refused").to_string();
        assert!(error.contains("`ingress` is neither an address nor a network"), "{error}");
    }

    #[test]
    fn limits_of_single_tools_may_be_set() {
        let config = from_file("[policy.tools.per_tool.bash]\napproval = \"deny\"\n", &[]).expect("loads");
        assert!(config.policy.tools.per_tool.contains_key("bash"));
        assert!(from_file("[policy.tools.per_tool.bash]\napprovals = \"deny\"\n", &[]).is_err());
    }
}
