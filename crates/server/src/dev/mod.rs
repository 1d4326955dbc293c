//! `toolhost dev`: everything on one machine, from nothing, and nothing left when it ends.

mod agent;
mod demo;
mod leftovers;
mod settings;

use anyhow::{Context, Result, bail};
use domain::{OperatorContext, Principal, Scope};
use store::{Authenticated, NewKey, NewTenant, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::cli::DevArgs;
use crate::config::{Config, Secret};
use crate::place::Place;
use crate::postgres::{Cluster, Durability};
use crate::service::{Parts, Service};
use crate::telemetry::Telemetry;
use crate::{stop, wiring};

/// Printed at the end of the start, and the first example of README.md (a test compares).
pub const FIRST_STEPS: &str = include_str!("first_steps.sh");

const DEMO_TENANT: &str = "demo";
const DEMO_KEY: &str = "demo-key";
/// There while a run is, and after one that was killed.
const RUNNING: &str = "running";

/// Starts all of it, and returns once it was asked to stop and has cleared away what it made.
///
/// # Errors
/// When something does not start, or ends by itself.
pub async fn run(mut config: Config, arguments: DevArgs, telemetry: &Telemetry) -> Result<()> {
    let stop = stop::on_signal()?;
    let place = Place::take(&arguments.state_dir)?;
    settings::apply(&mut config, &arguments, &place)?;
    let mut cluster = match &config.database.url {
        Some(_) => None,
        None => {
            let cluster = Cluster::start(&place.join("postgres"), Durability::Full).await?;
            config.database.url = Some(Secret::new(cluster.url()));
            Some(cluster)
        }
    };
    settings::keep(&config, &place)?;
    let ended = if stop.is_cancelled() {
        Ok(())
    } else {
        Box::pin(serve(&config, &arguments, &place, cluster.as_mut(), telemetry, &stop)).await
    };
    if let Some(cluster) = cluster.as_mut() {
        cluster.stop().await?;
    }
    ended
}

async fn serve(
    config: &Config,
    arguments: &DevArgs,
    place: &Place,
    cluster: Option<&mut Cluster>,
    telemetry: &Telemetry,
    stop: &CancellationToken,
) -> Result<()> {
    wiring::migrate(config).await?;
    let killed = place.read(RUNNING)?.is_some();
    place.write_private(RUNNING, &std::process::id().to_string())?;
    // Not the user's token: what a killed run left is cleared away before the worker is told to end.
    let end = CancellationToken::new();
    let service = Service::start(config, Parts::ApiAndWorker, telemetry, end.clone()).await?;
    let clearing =
        service.sandboxes().filter(|_| killed).map(|sandboxes| tokio::spawn(leftovers::clear(sandboxes)));
    let shown = tokio::select! {
        shown = show(config, arguments, place, &service) => shown,
        () = stop.cancelled() => Ok(()),
    };
    let waited = match shown {
        Ok(()) => wait(cluster, &service, stop).await,
        Err(error) => Err(error),
    };
    println!("\nStopping: ending sessions and removing their sandboxes …");
    if let Some(clearing) = clearing {
        clearing.await.context("clearing away what a killed run left broke")?;
    }
    end.cancel();
    service.stopped().await?;
    place.forget(RUNNING)?;
    waited
}

async fn show(config: &Config, arguments: &DevArgs, place: &Place, service: &Service) -> Result<()> {
    let key = demo_key(service.store(), place).await?;
    let address = service.address().context("the API has an address")?;
    let url = format!("http://{address}");
    println!("Toolhost {} serves on {url}", env!("CARGO_PKG_VERSION"));
    if let Some(metrics) = service.metrics_address() {
        println!("Metrics are on http://{metrics}/metrics, the API's document on {url}/openapi.json");
    }
    if !arguments.no_demo {
        println!("\nA demo call over its own HTTP API, as its events arrive:\n");
        demo::run(&url, &key).await.context("the demo call failed")?;
    }
    println!("\nTry it yourself:\n\nexport TOOLHOST_URL={url} TOOLHOST_KEY={key}\n\n{FIRST_STEPS}");
    let file = place.join(settings::FILE);
    let program = std::env::args().next().unwrap_or_else(|| "toolhost".to_owned());
    println!("Administer it with `{program} --config {} admin …`.", file.display());
    if config.worker.end_sessions_at_exit {
        println!("Ctrl-C ends it, with all sessions and sandboxes.");
    }
    Ok(())
}

async fn wait(cluster: Option<&mut Cluster>, service: &Service, stop: &CancellationToken) -> Result<()> {
    let database_ended = async {
        match cluster {
            Some(cluster) => cluster.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = service.failed() => bail!("a part of the service ended by itself; its last log lines say why"),
        () = database_ended => bail!("the private Postgres ended by itself; see .toolhost/postgres/log"),
    }
}

/// The demo tenant's key, the same in every run as long as it is valid.
async fn demo_key(store: &Store, place: &Place) -> Result<String> {
    let operator = OperatorContext::verified(Principal::command_line());
    let tenant = match store.find_tenant(&operator, DEMO_TENANT).await {
        Err(StoreError::NotFound { .. }) => {
            let new = NewTenant { name: DEMO_TENANT.to_owned(), ..NewTenant::default() };
            store.create_tenant(&operator, new).await
        }
        found => found,
    }
    .context("cannot make the demo tenant")?;
    if let Some(kept) = place.read(DEMO_KEY)?
        && let Ok(Authenticated::Tenant(context)) = store.authenticate(&kept, None).await
        && context.tenant_id() == tenant.id
    {
        return Ok(kept);
    }
    let new = NewKey { name: "demo".to_owned(), scopes: Scope::tenant_default(), ..NewKey::default() };
    let (_, key) = store.create_key(&operator, tenant.id, new).await.context("cannot make the demo key")?;
    place.write_private(DEMO_KEY, key.reveal())?;
    Ok(key.reveal().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_begins_with_what_is_printed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        let readme = std::fs::read_to_string(path).expect("is there");
        assert!(readme.contains(&format!("```bash\n{FIRST_STEPS}```")), "README.md has other first steps");
    }
}
